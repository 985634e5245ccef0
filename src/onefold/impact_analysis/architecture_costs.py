"""The costs of serving, measured once per architecture: over several rounds, each in a random order.

Models of one architecture share the figures, so that they cannot differ by when they were measured. A drift of the
machine, such as its temperature, falls on all architectures alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

from onefold.device import PRECISE, Device, Session, open_session, quiet_host, runtime
from onefold.serving.export import samples_beside
from onefold.store.locks import MeasurementLock
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import Metrics, from_json, to_json
from onefold.vocabulary.serving import Served, ServingPoint

ROUNDS = 4


@dataclass(frozen=True, slots=True)
class ArchitectureCost:
    """The cost of a single sample in each round, with the number of threads that was faster."""

    latencies_s: tuple[float, ...]
    energies_j: tuple[float, ...] = ()  # empty if unknown

    @property
    def costs(self) -> Metrics:
        """Return the figures of the fastest round, since interference only ever slows down."""
        fastest = self.latencies_s.index(min(self.latencies_s))
        energy = {"energy_j": self.energies_j[fastest]} if self.energies_j else {}
        return {"latency_s": self.latencies_s[fastest], **energy}

    @property
    def repeatability(self) -> Metrics:
        """Return the relative standard deviations over the rounds."""
        rounds = {"latency_s": self.latencies_s, "energy_j": self.energies_j}
        return {name: rsd(values) for name, values in rounds.items() if len(values) > 1}


@dataclass(frozen=True, slots=True)
class SharedCosts:
    """The figures of models by trial, in which those of one architecture share its costs, and their repeatability."""

    figures: Mapping[int, Metrics]
    repeatability: Mapping[int, Metrics]  # relative standard deviation; without those of an unknown architecture


@dataclass
class CostMeasurements:
    """Measures architectures on a device, and remembers the results in a file."""

    device: Device
    host: Device
    record: Path
    measurement_lock: MeasurementLock
    paused: Callable[[], AbstractContextManager[None]]  # other work of this process
    pairings: Path | None = None
    seed: int = 0
    on_round: Callable[[int, int], None] = lambda done, total: None  # noqa: ARG005

    def measure(self, files: Mapping[str, Path]) -> Mapping[str, ArchitectureCost]:
        """Return the costs by signature; an architecture without a file and without a record is left out."""
        known = self._known()
        costs = {
            name: from_json(ArchitectureCost, known[self._key(name)]) for name in files if self._key(name) in known
        }
        missing = {name: file for name, file in sorted(files.items()) if name not in costs and file.is_file()}
        if missing:
            costs |= self._measured(missing)
            known |= {self._key(name): to_json(costs[name]) for name in missing if name in costs}
            temporary = self.record.with_suffix(".new")
            temporary.write_text(json.dumps(known, indent=1), encoding="utf-8")
            temporary.replace(self.record)
        return costs

    def _measured(self, files: Mapping[str, Path]) -> Mapping[str, ArchitectureCost]:
        served: dict[str, list[Served]] = {name: [] for name in files}
        rng = random.Random(self.seed)
        for number in range(ROUNDS):
            self.on_round(number, ROUNDS)
            order = rng.sample(list(files), len(files))
            session = open_session(self.device, self.host, pairings=self.pairings)  # a new serving process per round
            with session, quiet_host(session, self.measurement_lock, self.paused):
                for name in order:
                    served[name] += _serve(session, files[name])
        return {name: _cost(results) for name, results in served.items() if results}

    def _known(self) -> dict[str, object]:
        try:
            content = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _key(self, signature: str) -> str:
        return "/".join((self.device.digest, self.host.digest, runtime(), signature))


def rsd(values: Sequence[float]) -> float:
    """Return the relative standard deviation of repeated measurements."""
    return stdev(values) / mean(values)


def share_costs(
    figures: Mapping[int, Metrics], signatures: Mapping[int, str], costs: Mapping[str, ArchitectureCost]
) -> SharedCosts:
    """Return the figures by trial with the costs of its architecture.

    Latency and energy are those of the architecture's rounds. Memory and file size, of which every file has its own
    figure, are their medians over the models of one architecture. Other figures, such as the encoded size, stay.
    """
    groups: dict[str, list[int]] = {}
    for trial in figures:
        if trial in signatures:
            groups.setdefault(signatures[trial], []).append(trial)
    shared = {trial: dict(values) for trial, values in figures.items()}
    repeatability: dict[int, Metrics] = {}
    for signature, members in groups.items():
        samples = {
            name: [figures[trial][name] for trial in members]
            for name in ("latency_s", "energy_j", "memory_bytes", "size_bytes")
            if all(name in figures[trial] for trial in members)
        }
        common = {name: float(median(sample)) for name, sample in samples.items()}
        spread = {name: rsd(samples[name]) for name in ("memory_bytes",) if len(samples.get(name, ())) > 1}
        if (cost := costs.get(signature)) is not None:
            common |= {name: value for name, value in cost.costs.items() if name in samples}
            spread |= cost.repeatability
        for trial in members:
            shared[trial] |= common
            repeatability[trial] = spread
    return SharedCosts(shared, repeatability)


def _serve(session: Session, file: Path) -> list[Served]:
    points = [ServingPoint(1, threads) for threads in sorted({1, session.threads})]
    try:
        session.prepare(file, samples_beside(file), points)
        return [session.serve(file, point, PRECISE) for point in points]
    except ModelError:  # its models were measured before, and keep those figures
        return []


def _cost(results: Sequence[Served]) -> ArchitectureCost:
    fastest = min(results, key=lambda served: served.latency_s)
    repeated = [served for served in results if served.point == fastest.point]
    energies = [energy for served in repeated if (energy := served.energy_per_sample_j) is not None]
    return ArchitectureCost(
        tuple(served.latency_s for served in repeated), tuple(energies) if len(energies) == len(repeated) else ()
    )
