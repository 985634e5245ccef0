"""Which models are served as the same graph: found while they are built, and one file of each is kept to be measured.

Two models of one architecture cost the same to serve, whatever their weights. Which graph is served depends on more
than the configuration (an exporter folds operators, a quantizer leaves layers out), so that it is read from the files.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from onefold.compression.trial_variants import VariantRequest
from onefold.compression.variant_builder import BuiltVariant
from onefold.engine import Call, CallFinished, Engine, Event
from onefold.serving.export import samples_beside
from onefold.serving.signature import architecture, read

INT32 = 6  # of ONNX's data types
BIAS_CONSUMERS = {"DequantizeLinear", "QLinearConv", "QGemm"}  # operators with int32 biases, which are weights


@dataclass
class ArchitectureRecords:
    """The signatures of the files of each trial, plain first, and one file of each architecture."""

    folder: Path

    def keep(self, trial: int, built: list[BuiltVariant]) -> None:
        """Record the architectures of a trial's files, and keep a file of each that is new."""
        self.folder.mkdir(parents=True, exist_ok=True)
        signatures = []
        for variant in built:
            signature = served_signature(variant.file)
            signatures.append(signature)
            kept = self.file(signature)
            if not kept.exists():
                shutil.copyfile(samples_beside(variant.file), samples_beside(kept))
                temporary = kept.with_suffix(".new")
                shutil.copyfile(variant.file, temporary)
                temporary.replace(kept)
        self._record(trial).write_text(json.dumps(signatures), encoding="utf-8")

    def of(self, trial: int) -> tuple[str, ...]:
        """Return the signatures of a trial's files; empty if they are unknown."""
        try:
            content = json.loads(self._record(trial).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ()
        return tuple(content)

    def file(self, signature: str) -> Path:
        """Return the path of the file of an architecture, which is removed after it was measured."""
        return self.folder / f"{signature}.onnx"

    def remove_files(self) -> None:
        """Remove the model files and keep the records."""
        for suffix in ("*.onnx", "*.npz", "*.new"):
            for file in self.folder.glob(suffix):
                file.unlink()

    def _record(self, trial: int) -> Path:
        return self.folder / f"{trial:05d}.json"


@dataclass
class RecordingEngine:
    """An engine that records the architectures of the variants that its calls build, before their files are removed."""

    engine: Engine
    records: ArchitectureRecords
    trials: dict[int, int] = field(default_factory=dict)  # by run

    @property
    def slots(self) -> int:
        return self.engine.slots

    @property
    def free_slots(self) -> int:
        return self.engine.free_slots

    def start(self, call: Call) -> int:
        run = self.engine.start(call)
        if call.args and isinstance(call.args[0], VariantRequest):
            self.trials[run] = call.args[0].trial
        return run

    def wait(self, timeout_s: float) -> list[Event]:
        events = self.engine.wait(timeout_s)
        for event in events:
            if isinstance(event, CallFinished) and event.run in self.trials:
                self.records.keep(self.trials.pop(event.run), event.value)
        return events

    def stop(self, run: int) -> None:
        self.engine.stop(run)

    def lend(self, run: int, cores: int) -> None:
        self.engine.lend(run, cores)

    def paused(self) -> AbstractContextManager[None]:
        return self.engine.paused()

    def __enter__(self) -> RecordingEngine:
        self.engine.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.__exit__(*exc)


def served_signature(path: Path) -> str:
    """Return the signature of a file's graph; unlike small integer constants, the biases of int8 layers are weights."""
    model = read(path)
    consumed = {name for node in model.graph.node if node.op_type in BIAS_CONSUMERS for name in node.input}
    biases = [weight for weight in model.graph.initializer if weight.data_type == INT32 and weight.name in consumed]
    if not biases:
        return architecture(path).signature
    for weight in biases:
        weight.ClearField("int32_data")
        weight.raw_data = bytes(4 * math.prod(weight.dims))
    with tempfile.TemporaryDirectory() as folder:
        neutral = Path(folder) / "model.onnx"
        neutral.write_bytes(model.SerializeToString())
        return architecture(neutral).signature
