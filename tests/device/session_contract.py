"""The contract of `onefold.device.Session`: subclass `SessionContract` and give it an open and an unopened session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onefold.device import Session, TimingEffort
from onefold.vocabulary.errors import DeviceError, ModelError
from onefold.vocabulary.serving import LatencySource, ServingPoint

SHORT = TimingEffort(warm_up_runs=1, min_runs=3, max_runs=20, max_seconds=0.05, precision=0.05)


class SessionContract:
    """Tests that every implementation of `Session` passes.

    `session` is a session inside its `with` block. `model` is an ONNX file with a dynamic batch dimension whose only
    input, `input0`, has 4 features, with samples in an .npz file beside it.
    """

    source: LatencySource  # of every latency that the session measures

    @pytest.fixture
    def session(self) -> Session:
        """Return an open session."""
        raise NotImplementedError

    @pytest.fixture
    def unopened(self) -> Session:
        """Return a session that was not entered."""
        raise NotImplementedError

    def test_served_points_are_complete_and_labeled(self, session: Session, model: Path) -> None:
        point = ServingPoint(batch_size=8)
        session.prepare(model, None, [point])
        served = session.serve(model, point, SHORT)
        assert served.point == point
        assert served.source.is_from_device == self.source.is_from_device
        assert 0 < served.low_s <= served.latency_s <= served.high_s
        assert served.latency_s <= served.p90_s <= served.p99_s
        assert SHORT.min_runs <= served.runs <= SHORT.max_runs
        assert served.energy.joules is None or served.energy.joules >= 0

    def test_effort_limits_the_runs(self, session: Session, model: Path) -> None:
        served = session.serve(model, ServingPoint(), TimingEffort(0, min_runs=7, max_runs=7, max_seconds=0.0))
        assert served.runs == 7

    def test_serve_loads_the_model_if_needed(self, session: Session, model: Path) -> None:
        assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.min_runs

    def test_threads_are_within_the_device(self, session: Session) -> None:
        assert 1 <= session.threads <= session.device.cores

    def test_memory_is_unknown_or_positive(self, session: Session, model: Path) -> None:
        memory_bytes = session.memory(model, ServingPoint())
        assert memory_bytes is None or memory_bytes > 0

    def test_notes_are_sentences(self, session: Session, model: Path) -> None:
        session.serve(model, ServingPoint(), SHORT)
        assert all(isinstance(note, str) and note for note in session.notes(model))

    def test_samples_are_fed_to_the_model(self, session: Session, model: Path, tmp_path: Path) -> None:
        """Samples of a wrong shape fail, which shows that they are used."""
        np.savez(tmp_path / "wrong.npz", input0=np.zeros((2, 5), "f4"))
        session.prepare(model, tmp_path / "wrong.npz", [ServingPoint()])
        with pytest.raises(ModelError, match="cannot be served"):
            session.serve(model, ServingPoint(), SHORT)
        session.prepare(model, model.with_suffix(".npz"), [ServingPoint()])
        assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.min_runs

    def test_missing_model_is_an_error(self, session: Session, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="there is no model"):
            session.prepare(tmp_path / "missing.onnx", None, [ServingPoint()])

    def test_invalid_model_does_not_end_the_session(self, session: Session, model: Path, tmp_path: Path) -> None:
        (tmp_path / "bad.onnx").write_bytes(b"not a model")
        with pytest.raises(ModelError):
            session.prepare(tmp_path / "bad.onnx", None, [ServingPoint()])
        assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.min_runs

    def test_unopened_session_refuses_to_serve(self, unopened: Session, model: Path) -> None:
        with pytest.raises(DeviceError, match="not open"):
            unopened.serve(model, ServingPoint(), SHORT)

    def test_session_can_be_opened_again(self, unopened: Session, model: Path) -> None:
        for _ in range(2):
            with unopened as session:
                assert session.serve(model, ServingPoint(), SHORT).runs >= SHORT.min_runs
        unopened.__exit__(None)  # exiting twice is harmless
