"""Whole models: compiled with the best candidates, checked and timed."""

from __future__ import annotations

import struct
import tarfile
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import outputs_of

from onefold.device.catalog import device
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.model_compiler import (
    FINAL_REPEATS,
    MAX_ERROR,
    ROUND_REPEATS,
    ModelCompiler,
    TimedLibrary,
    relative_error,
)
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.targets import Target, target_of
from onefold.vocabulary.errors import ModelError

Array = np.ndarray[Any, Any]
MACHINES = {"raspberry-pi-4": (64, 183), "armv7-board": (32, 40)}  # ELF class and machine number


@pytest.fixture(scope="module")
def plain(compiler: ModelCompiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the untuned tiny model."""
    return compiler.compile({}, tmp_path_factory.mktemp("plain") / "plain.so")


def test_outputs_match_onnxruntime(compiler: ModelCompiler, plain: Path) -> None:
    result = compiler.time_library(plain)
    assert result.latency_s > 0
    assert result.error < 1e-5


def test_candidates_change_the_library_but_not_the_outputs(
    compiler: ModelCompiler, plain: Path, here: Target, tmp_path: Path
) -> None:
    best: dict[str, Proposal] = {}
    for operator, module in compiler.operators:
        space = ScheduleSpace(operator, module, here, seed=1)
        best[operator.key] = next(proposal for proposal in iter(space.sample, object()) if proposal is not None)
    chosen = compiler.compile(best, tmp_path / "best.so")
    assert chosen.read_bytes() != plain.read_bytes()
    assert compiler.time_library(chosen).error < 1e-5


def test_the_best_is_one_of_the_libraries_that_were_timed(
    tiny: Path, sample: Array, runner: CandidateRunner, tmp_path: Path
) -> None:
    costs = PhaseCosts()
    model = ModelCompiler("kept", tiny, [sample], outputs_of(tiny, [sample]), runner, 3)
    operator, module = model.operators[0]
    proposal = next(filter(None, iter(ScheduleSpace(operator, module, runner.target).sample, object())))
    timed = [model.measure(best, tmp_path, costs) for best in ({}, {operator.key: proposal})]
    assert model.best is not None
    assert model.best.file in [timing.file for timing in timed]
    assert model.best.file.is_file()
    assert set(costs.total.seconds) == {"whole"}


def test_the_best_library_is_timed_again_and_not_compiled_again(
    tiny: Path, sample: Array, runner: CandidateRunner, tmp_path: Path
) -> None:
    model = ModelCompiler("again", tiny, [sample], outputs_of(tiny, [sample]), runner, 3)
    first, again = (model.measure({}, tmp_path, PhaseCosts()) for _ in range(2))
    assert again is not first
    assert again is model.best
    assert again.file == first.file


@pytest.mark.parametrize(
    ("new", "again", "is_kept", "repeats"),
    [(0.5, 1.0, True, 1), (0.9, 1.0, True, 2), (1.1, 1.0, False, 2), (1.1, 1.3, True, 2), (0.9, 0.8, False, 2)],
)
def test_a_library_is_the_best_if_it_is_faster_than_the_best_timed_again(
    new: float, again: float, is_kept: bool, repeats: int, compiler: ModelCompiler, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The best library was timed at 1.0."""
    model = copy(compiler)
    old = tmp_path / "old.so"
    old.touch()
    model.best = TimedLibrary(old, 1.0, 0.0)
    model._finalists = {old: model.best}
    timed: list[Path] = []

    def time(file: Path, costs: PhaseCosts | None = None) -> TimedLibrary:
        timed.append(file)
        return TimedLibrary(file, again if file == old else new, 0.0)

    monkeypatch.setattr(model, "time_library", time)
    monkeypatch.setattr(model, "compile", lambda best, file, costs: file.touch())
    result = model.measure({}, tmp_path, PhaseCosts())
    assert result.latency_s == new
    assert model.best.file == (result.file if is_kept else old)
    assert model.best.file.is_file()
    assert len(timed) == 1 + ROUND_REPEATS * repeats


def test_close_libraries_are_timed_in_turns_at_the_end(
    compiler: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round may be timed under contention, so the close ones are timed again."""
    model = copy(compiler)
    model.best, model._finalists = None, {}
    latencies = {"slow": 9.0, "far": 1.5, "unlucky": 1.1, "lucky": 1.0}
    names: dict[Path, str] = {}
    timed: list[str] = []

    def time(file: Path, costs: PhaseCosts | None = None) -> TimedLibrary:
        timed.append(names[file])
        return TimedLibrary(file, latencies[names[file]], 0.0)

    def compiled(best: dict[str, Proposal], file: Path, costs: PhaseCosts) -> None:
        assert file not in names, "it was compiled twice"
        names[file] = best[key].key
        file.touch()

    monkeypatch.setattr(model, "time_library", time)
    monkeypatch.setattr(model, "compile", compiled)
    key = model.operators[0][0].key
    for name in latencies:
        model.measure({key: Proposal(0, (), None, name)}, tmp_path, PhaseCosts())
    assert model.best is not None
    assert names[model.best.file] == "lucky"
    assert {names[file] for file in tmp_path.iterdir()} == {"lucky", "unlucky"}
    timed.clear()
    latencies["unlucky"] = 0.9
    result = model.settle(PhaseCosts())
    assert result is model.best
    assert (names[result.file], result.latency_s) == ("unlucky", 0.9)
    assert timed == ["lucky", "unlucky"] * FINAL_REPEATS
    assert names[model.measure({key: Proposal(0, (), None, "lucky")}, tmp_path, PhaseCosts()).file] == "lucky"


def test_the_minimum_of_several_timings_counts(
    compiler: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy(compiler)
    model.best, model._finalists = None, {}
    latencies_s = iter([1.4, 1.3, 1.0, 1.3])
    monkeypatch.setattr(model, "time_library", lambda file, costs: TimedLibrary(file, next(latencies_s), 0.0))
    monkeypatch.setattr(model, "compile", lambda best, file, costs: file.touch())
    result = model.measure({}, tmp_path, PhaseCosts())
    assert result is model.best
    assert result.latency_s == 1.0


def test_a_library_that_cannot_be_timed_again_is_ignored(compiler: ModelCompiler, tmp_path: Path) -> None:
    model = copy(compiler)
    gone = [TimedLibrary(tmp_path / f"{name}.so", 1.0, 0.0) for name in ("first", "second")]
    model.best, model._finalists = gone[0], {timing.file: timing for timing in gone}
    assert model.settle(PhaseCosts()) is gone[0]


def test_a_single_library_is_timed_again_too(
    compiler: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy(compiler)
    only = TimedLibrary(tmp_path / "only.so", 1.0, 0.0)
    model.best, model._finalists = only, {only.file: only}
    latencies_s = iter([1.1, 0.9, 1.2, 1.0, 1.1])
    monkeypatch.setattr(model, "time_library", lambda file, costs: TimedLibrary(file, next(latencies_s), 0.0))
    result = model.settle(PhaseCosts())
    assert result is model.best
    assert result is not None
    assert result.latency_s == 0.9


def test_wrong_outputs_are_an_error(tiny: Path, sample: Array, runner: CandidateRunner, plain: Path) -> None:
    wrong = [outputs_of(tiny, [sample])[0] * 1.01]
    model = ModelCompiler("other", tiny, [sample], wrong, runner, 3)
    with pytest.raises(
        ModelError, match=r"the outputs of the compiled other differ from the model's by 0\.99% of the larg"
    ):
        model.time_library(plain)


@pytest.mark.parametrize("board", MACHINES)
def test_another_architecture_gets_an_archive_of_objects(board: str, tiny: Path, sample: Array, tmp_path: Path) -> None:
    with CandidateRunner(target_of(device(board), is_host=False)) as there:
        model = ModelCompiler("far", tiny, [sample], [], there, 3)
        file = model.compile({}, tmp_path / "far.tar")
    with tarfile.open(file) as archive:
        objects = [archive.extractfile(name) for name in archive.getnames() if name.endswith(".o")]
        heads = [file.read(20) for file in objects if file is not None]
    assert len(heads) >= 2
    for head in heads:
        assert head.startswith(b"\x7fELF")
        assert (32 * head[4], struct.unpack_from("<H", head, 18)[0]) == MACHINES[board]


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("outputs", "answers", "expected"),
    [
        ([], [], 0.0),
        ([ONES], [ONES], 0.0),
        ([ONES * 4], [ONES * 5], 0.2),
        ([ONES, ONES * 4], [ONES, ONES * 5], 0.2),  # the worst of several
        ([ONES * 4, ONES], [ONES * 5, ONES], 0.2),
        ([ONES], [ONES, ONES], np.inf),
        ([ONES], [ONES.T], np.inf),
        ([ONES * np.nan], [ONES], np.inf),
        ([ONES, ONES * np.nan, ONES], [ONES, ONES, ONES], np.inf),
        ([ONES * np.inf], [ONES], np.inf),
        ([np.zeros((0, 3))], [np.zeros((0, 3))], 0.0),
    ],
)
def test_the_error_is_relative_to_the_largest_output(
    outputs: list[Array], answers: list[Array], expected: float
) -> None:
    assert relative_error(outputs, answers) == pytest.approx(expected)


@given(values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), by=st.floats(1e-6, 1.0))
def test_a_difference_above_the_tolerance_is_detected(values: list[float], by: float) -> None:
    answer = np.array(values, np.float64)
    moved = answer.copy()
    moved[0] += by * max(np.abs(answer).max(), 1e-6)
    assert relative_error([moved], [answer]) == pytest.approx(by, rel=1e-6)
    assert (relative_error([moved], [answer]) > MAX_ERROR) == (by > MAX_ERROR) or by == pytest.approx(MAX_ERROR)
