"""Simulated response times against those that MLPerf LoadGen measures.

Two real networks in ONNX Runtime with one thread: an LSTM that benefits from batching, and M5, which hardly does. Each
is tested under two loads at 60 % of its capacity at batch size 1:

- **Poisson**: LoadGen's Server scenario with single samples. The batching queue is ours, behind LoadGen's.
- **fixed rate, 8 samples per query**: LoadGen's MultiStream, which measures a query until its last sample, as we do. It
  issues the next query when the last one is answered and the issuing call returns; ours returns at the next tick of a
  clock. (LoadGen 6 has no fixed rate.) A query that is still being served at the next tick delays the next one, which
  LoadGen counts from its start; the figures include how many were late.

Fairness: the latency curve is measured through the same system (queue, thread, gathering of inputs), from answer to
answer while the queue is not empty, so that it includes the cost of Python; the idle penalty is measured too. LoadGen's
own calls are not included. Curve, policies and scenarios are interleaved in every round, and medians over rounds are
compared. Arrivals differ between rounds. LoadGen's figures are read from its log, and the prediction never sees them.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import mlperf_loadgen as loadgen
import numpy as np
import onnxruntime
import torch
from claims import Claim, arguments, conclude, table

from onefold import Config
from onefold.serving.load_test import BatchingQueue, load_test
from onefold.serving.queue_simulation import IdlePenalty, LatencyCurve, split
from onefold.serving.scenario_settings import ScenarioSettings, choose_settings, predict
from onefold.serving.scenarios import MultiStream, Scenario, Server
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint
from onefold.vocabulary.workload_reference import load

NETWORKS: dict[str, dict[str, Any]] = {
    "newsgroups-lstm": dict(stride=1, units=128),
    "speech": dict(dimension=128, pool=2),
}
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
SAMPLES_PER_QUERY = 8
LOAD = 0.6  # share of the capacity at batch size 1
MAX_ERROR = 0.15  # of a prediction
IDLE_S = 0.002  # as in TimingEffort AFTER_IDLE
BACKLOG = 4  # queued batches while the curve is measured
LATE_S = 0.001  # above the jitter of a clock
LIBRARY = 256  # size of LoadGen's sample library

Sample = tuple[int, int]  # LoadGen's request id, and the index of the sample


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    curve_runs: int
    seconds: float  # of a LoadGen run


EFFORT = Effort(rounds=5, curve_runs=200, seconds=15)
QUICK_EFFORT = Effort(rounds=2, curve_runs=60, seconds=6)


class System:
    """The system under test: a queue of samples or of queries, and a thread that serves it in batches."""

    def __init__(self, file: Path, inputs: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.inputs = inputs

    def run(self, indices: list[int]) -> None:
        """Serve a batch of the samples with these indices."""
        self.session.run(None, {"x": self.inputs[indices]})

    def start(
        self, on_answer: Callable[[list[Sample]], None], batch_size: int, wait_s: float, *, whole: bool
    ) -> tuple[BatchingQueue[list[Sample]], threading.Thread]:
        """Return a queue and the thread that serves it; with `whole`, batches do not mix queries."""
        queue: BatchingQueue[list[Sample]] = BatchingQueue()

        def serve() -> None:
            while queries := queue.take(1 if whole else batch_size, wait_s):
                samples = [sample for query in queries for sample in query]
                for size in split(len(samples), batch_size):
                    batch, samples = samples[:size], samples[size:]
                    self.run([index for _, index in batch])
                    on_answer(batch)

        thread = threading.Thread(target=serve)
        thread.start()
        return queue, thread


def export(workload: str, sizes: dict[str, Any], folder: Path) -> System:
    """Export the untrained network (weights do not affect the cost) with real samples."""
    loaded = load(workload)
    inputs = np.ascontiguousarray(np.asarray(loaded.data().train[0][:LIBRARY]))
    network = loaded.build(Config(loaded.space.default(), **sizes)).eval()
    file = folder / f"{workload}.onnx"
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.as_tensor(inputs[:1]),),
            str(file),
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
        )
    return System(file, inputs)


def measure_curve(system: System, runs: int) -> list[Served]:
    """Measure the latency curve, batch sizes interleaved: back to back with a backlog, and after an idle gap."""
    answered_s: list[float] = []
    expected = BACKLOG
    all_answered = threading.Event()

    def on_answer(batch: list[Sample]) -> None:
        # LoadGen gets no responses here, but the list of them is created, since every batch has that cost.
        [loadgen.QuerySampleResponse(number, 0, 0) for number, _ in batch]
        answered_s.append(time.perf_counter())
        if len(answered_s) == expected:
            all_answered.set()

    queue, thread = system.start(on_answer, max(SIZES), 0.0, whole=True)
    busy_s: dict[int, list[float]] = {size: [] for size in SIZES}
    for run in range(-2, runs // (BACKLOG - 1)):
        for size in SIZES:
            all_answered.clear()
            answered_s.clear()
            queue.add([[(index, index) for index in range(size)]] * BACKLOG)
            all_answered.wait()
            if run >= 0:
                busy_s[size] += np.diff(answered_s).tolist()
    expected = 1
    idle_s: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(runs):
        for size in SIZES:
            all_answered.clear()
            answered_s.clear()
            time.sleep(IDLE_S)
            arrived_s = time.perf_counter()
            queue.add([[(index, index) for index in range(size)]])
            all_answered.wait()
            idle_s[size].append(answered_s[0] - arrived_s)
    queue.close()
    thread.join()
    return [_served(size, np.array(times_s), np.array(idle_s[size])) for size, times_s in busy_s.items()]


def _served(size: int, busy_s: np.ndarray, idle_s: np.ndarray) -> Served:
    """Return a point of the latency curve from latencies with a backlog and after an idle gap."""
    p50, p90, p99 = (float(np.quantile(busy_s, share)) for share in (0.5, 0.9, 0.99))
    # Confidence interval of the median by order statistics, in normal approximation.
    half = 0.98 / len(busy_s) ** 0.5
    low, high = (float(np.quantile(busy_s, share)) for share in (max(0.0, 0.5 - half), min(1.0, 0.5 + half)))
    after_idle = tuple(float(np.quantile(idle_s, share)) for share in (0.5, 0.9, 0.99))
    energy, point = Energy(None, "unavailable"), ServingPoint(batch_size=size)
    return Served(point, p50, p90, p99, low, high, len(busy_s), energy, None, LatencySource.MEASURED, after_idle)


def run_scenario(
    system: System, scenario: Scenario, batch_size: int, wait_s: float, seconds: float, seed: int
) -> dict[str, float]:
    """Return mean and p99 of a policy by LoadGen, and how many queries started late."""
    settings = loadgen.TestSettings()
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.schedule_rng_seed, settings.qsl_rng_seed, settings.sample_index_rng_seed = 11 + seed, 22 + seed, 33 + seed
    settings.min_duration_ms = 0
    late = [0]

    def on_answer(batch: list[Sample]) -> None:
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0) for number, _ in batch])

    queue, thread = system.start(on_answer, batch_size, wait_s, whole=isinstance(scenario, MultiStream))

    def issue_single(requests: list[int], indices: list[int]) -> None:
        queue.add([[sample] for sample in zip(requests, indices)])

    due_s = [0.0]

    def issue_at_ticks(requests: list[int], indices: list[int]) -> None:
        queue.add([list(zip(requests, indices))])
        now_s = time.perf_counter()
        due_s[0] = due_s[0] or now_s
        late[0] += now_s - due_s[0] > LATE_S
        due_s[0] += 1 / scenario.queries_per_s
        time.sleep(max(0.0, due_s[0] - now_s))

    if isinstance(scenario, MultiStream):
        settings.scenario, issue = loadgen.TestScenario.MultiStream, issue_at_ticks
        settings.multi_stream_samples_per_query = scenario.samples_per_query
        settings.multi_stream_expected_latency_ns = round(1e9 / scenario.queries_per_s)
        queries = round(seconds * scenario.queries_per_s)
    else:
        settings.scenario, issue = loadgen.TestScenario.Server, issue_single
        settings.server_target_qps = scenario.rate_per_s
        settings.server_target_latency_ns = 10**9
        queries = round(seconds * scenario.rate_per_s)
    settings.min_query_count = queries
    log = _run_loadgen(issue, settings)
    queue.close()
    thread.join()
    kind = "per_query_" if isinstance(scenario, MultiStream) else ""
    return {
        "mean ms": log[f"result_mean_{'query_' if kind else ''}latency_ns"] / 1e6,
        "p99 ms": log[f"result_99.00_percentile_{kind}latency_ns"] / 1e6,
        "late": late[0],
        "queries": queries,
    }


def _run_loadgen(issue: Callable[[list[int], list[int]], None], settings: Any) -> dict[str, Any]:
    """Run LoadGen; return the entries of its log."""
    with tempfile.TemporaryDirectory() as folder:
        output = loadgen.LogOutputSettings()
        output.outdir = folder
        log_settings = loadgen.LogSettings()
        log_settings.log_output = output
        log_settings.enable_trace = False
        sut = loadgen.ConstructFastSUT(issue, lambda: None)
        qsl = loadgen.ConstructQSL(LIBRARY, LIBRARY, lambda _: None, lambda _: None)
        loadgen.StartTestWithLogSettings(sut, qsl, settings, log_settings)
        loadgen.DestroyQSL(qsl)
        loadgen.DestroyFastSUT(sut)
        lines = (Path(folder) / "mlperf_log_detail.txt").read_text().splitlines()
    entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines if line.startswith(":::MLLOG")]
    return {entry["key"]: entry["value"] for entry in entries}


def compare(
    system: System,
    scenario: Scenario,
    policies: dict[str, tuple[int, float]],
    curve: LatencyCurve,
    choice: ScenarioSettings,
    effort: Effort,
    seed: int,
) -> list[dict[str, Any]]:
    """Run one round of a network in a scenario: predict, run LoadGen and load-test each policy."""
    rows = []
    for policy, (batch_size, wait_s) in policies.items():
        predicted = predict(scenario, curve, batch_size, wait_s, seed=seed)
        measured = run_scenario(system, scenario, batch_size, wait_s, effort.seconds, seed)
        policy_settings = replace(choice, point=replace(choice.point, batch_size=batch_size), wait_s=wait_s)
        confirmed = load_test(
            lambda size: system.run(list(range(size))), scenario, policy_settings, effort.seconds / 2, seed
        )
        rows.append(
            {
                "policy": policy,
                "batch": batch_size,
                "wait ms": wait_s * 1e3,
                "predicted mean ms": predicted.mean_s * 1e3,
                "LoadGen mean ms": measured["mean ms"],
                "confirm mean ms": confirmed.mean_s * 1e3,
                "predicted p99 ms": predicted.p99_s * 1e3,
                "LoadGen p99 ms": measured["p99 ms"],
                "confirm p99 ms": confirmed.p99_s * 1e3,
                "late": measured["late"],
                "queries": measured["queries"],
            }
        )
    return rows


def medians_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over the rounds of one network, scenario and policy."""
    return {
        key: value if isinstance(value, str) else median(row[key] for row in rows) for key, value in rows[0].items()
    }


def prediction_error(row: dict[str, Any], figure: str) -> float:
    """Return the error of the prediction relative to LoadGen's figure."""
    return abs(float(row[f"predicted {figure} ms"]) / float(row[f"LoadGen {figure} ms"]) - 1)


def claims_of(rows: list[dict[str, Any]]) -> list[Claim]:
    """Return the claims from the medians over rounds."""
    claims = []
    for kind in ("fixed rate", "Poisson"):
        recommended = [row for row in rows if row["arrivals"] == kind and row["policy"] == "recommended"]
        for figure in ("mean", "p99"):
            errors = {row["network"]: prediction_error(row, figure) for row in recommended}
            measured = ", ".join(f"{network} {error:.1%}" for network, error in errors.items())
            title = f"{kind}: predicted {figure} response against LoadGen's"
            claims.append(Claim(title, f"within {MAX_ERROR:.0%}", measured, max(errors.values()) <= MAX_ERROR))
        ratios = {}
        for row in recommended:
            single = next(
                other
                for other in rows
                if other["policy"] == "one by one" and all(other[key] == row[key] for key in ("network", "arrivals"))
            )
            ratios[row["network"]] = 1.0 if row["batch"] == 1 else row["LoadGen mean ms"] / single["LoadGen mean ms"]
        measured = ", ".join(f"{network} {ratio:.2f}x" for network, ratio in ratios.items())
        claims.append(
            Claim(
                f"{kind}: mean response of the recommended batch over batch 1, by LoadGen",
                "<= 1x",
                measured,
                max(ratios.values()) <= 1,
            )
        )
    return claims


def main() -> None:
    options = arguments(__doc__)
    effort = QUICK_EFFORT if options.quick else EFFORT
    torch.set_num_threads(1)
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    figures: dict[str, Any] = {"choices": {}, "curves": {}}
    with tempfile.TemporaryDirectory() as folder:
        systems = {name: export(name, sizes, Path(folder)) for name, sizes in NETWORKS.items()}
        choices: dict[str, dict[str, tuple[Scenario, ScenarioSettings]]] = {}
        for name, system in systems.items():
            served = measure_curve(system, effort.curve_runs)
            single_s = LatencyCurve.of(served).mean_s(1)
            scenarios: dict[str, Scenario] = {
                "fixed rate": MultiStream(SAMPLES_PER_QUERY, round(LOAD / single_s / SAMPLES_PER_QUERY, 1)),
                "Poisson": Server(round(LOAD / single_s)),
            }
            choices[name] = {
                kind: (scenario, choose_settings(scenario, served)) for kind, scenario in scenarios.items()
            }
            for kind, (scenario, choice) in choices[name].items():
                print(f"{name}, {kind}, {scenario}: {choice.why}", flush=True)
                figures["choices"][f"{name}, {kind}"] = asdict(choice)
        for round_number in range(effort.rounds):
            for name, system in systems.items():
                served = measure_curve(system, effort.curve_runs)
                curve = LatencyCurve.of(served, IdlePenalty.of(served))
                figures["curves"].setdefault(name, []).append(asdict(curve))
                for kind, (scenario, choice) in choices[name].items():
                    policies = {"recommended": (choice.point.batch_size, choice.wait_s), "one by one": (1, 0.0)}
                    for row in compare(system, scenario, policies, curve, choice, effort, round_number):
                        row = {"network": name, "arrivals": kind, **row}
                        rows.setdefault((name, kind, row["policy"]), []).append(row)
    medians = [medians_of(rounds) for rounds in rows.values()]
    table(medians)
    figures |= {"medians": medians, "rounds": [row for rounds in rows.values() for row in rounds]}
    conclude("scenarios", claims_of(medians), figures, quick=options.quick)


if __name__ == "__main__":
    main()
