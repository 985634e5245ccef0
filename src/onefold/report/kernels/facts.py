"""The results of a compilation as short phrases: the recommended runtime, what was saved, what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onefold.report import phrases
from onefold.report.kernels.costs import Fate, failures, fate_costs, joules_per_ms_saved, saved_s
from onefold.report.tile import Tile
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CompileResult, RuntimeLatency
from onefold.vocabulary.records import Energy

COMPILED = "tvm"  # the runtime of the compiled model
FASTEST = "it is the fastest"
SLOWER = "another runtime is faster"


def setup(compiled: CompileResult) -> str:
    """Return the device, the target and the options."""
    threads = quantities.count(compiled.threads, "thread")
    how = f"graph optimization level {compiled.level}, strategy {compiled.strategy}"
    return f"on {compiled.device}, for {compiled.target}, {threads}, {how}"


def recommended(compiled: CompileResult) -> RuntimeLatency | None:
    """Return the recommended runtime; None if it was not measured."""
    return next((runtime for runtime in compiled.runtimes if runtime.name == compiled.recommended), None)


def reason(compiled: CompileResult) -> str:
    """Return why it is recommended."""
    chosen = recommended(compiled)
    if chosen is None:
        return "it was not measured" if compiled.runtimes and compiled.recommended else "no runtime was measured"
    others = [runtime for runtime in compiled.runtimes if runtime is not chosen and math.isfinite(runtime.latency_s)]
    second = min(others, key=lambda runtime: runtime.latency_s, default=None)
    if second is None or not chosen.latency_s > 0:
        return FASTEST
    if second.latency_s < chosen.latency_s:
        return SLOWER
    return f"{FASTEST}, {quantities.factor(second.latency_s / chosen.latency_s)} as fast as {second.name}"


def result(compiled: CompileResult) -> str:
    """Return the recommended runtime with its reason."""
    return f"use {compiled.recommended}; {reason(compiled)}" if compiled.recommended else reason(compiled)


def outcome(compiled: CompileResult) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the results."""
    yield "recommended", compiled.recommended or quantities.MISSING
    yield "why", reason(compiled)
    yield "error against the model's own outputs", error(compiled)
    yield "library", compiled.folder or "not saved"
    yield "why it stopped", compiled.why_stopped or quantities.MISSING


def error(compiled: CompileResult) -> str:
    """Return the largest difference from the model's own outputs."""
    if not math.isfinite(compiled.error):
        return "unknown"
    if compiled.error == 0:
        return "none"
    return f"{quantities.rounded(compiled.error, 2)} of the largest output"


def tiles(compiled: CompileResult) -> Iterator[Tile]:
    """Yield the compilation in four numbers."""
    chosen = recommended(compiled)
    latency = quantities.MISSING if chosen is None else quantities.duration(chosen.latency_s)
    note = reason(compiled) if chosen is None else f"{chosen.name}: {reason(compiled)}"
    yield Tile("Latency, recommended runtime", latency, note, accent=chosen is not None)
    yield Tile("Whole model, first to last round", improvement(compiled), progress(compiled))
    spent = compiled.spent
    time = quantities.duration(spent.time_s) if spent.seconds else quantities.MISSING
    yield Tile("Time", time, time_note(compiled))
    yield Tile.energy(spent.energy, price(compiled))


def improvement(compiled: CompileResult) -> str:
    """Return the whole model's latency before and after; a common unit is given once."""
    if not compiled.rounds:
        return quantities.MISSING
    first, last = (
        quantities.duration(tuning_round.latency_s) for tuning_round in (compiled.rounds[0], compiled.rounds[-1])
    )
    if first == last:
        return last
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first} →\N{NO-BREAK SPACE}{last}"


def progress(compiled: CompileResult) -> str:
    """Return the gain of the rounds and the number of candidates."""
    rounds = compiled.rounds
    if not rounds:
        return "no round has finished"
    first, saved = rounds[0].latency_s, saved_s(compiled)
    gain = f"{quantities.share(saved / first)} less" if saved > 0 and first > 0 else "no faster"
    return f"{gain}, {quantities.count(len(rounds), 'round')}, {quantities.count(rounds[-1].tried, 'candidate')}"


def time_note(compiled: CompileResult) -> str:
    """Return the phase that took most of the time."""
    seconds, total = compiled.spent.seconds, compiled.spent.time_s
    if not total > 0:
        return "no time was recorded"
    name = max(seconds, key=lambda phase: seconds[phase])
    return f"{quantities.share(seconds[name] / total)} of it: {name}"


def price(compiled: CompileResult) -> str:
    """Return the energy per millisecond of latency saved."""
    if saved_s(compiled) <= 0:
        return "nothing saved"
    cost = joules_per_ms_saved(compiled)
    energy = phrases.energy(Energy(cost, compiled.spent.source))
    return (
        f"{quantities.duration(saved_s(compiled))} saved" if energy == quantities.MISSING else f"{energy} per ms saved"
    )


def savings(compiled: CompileResult) -> Iterator[str]:
    """Yield what was saved, at what cost, and what was wasted."""
    saved, energy = saved_s(compiled), compiled.spent.energy
    if saved > 0:
        yield f"the last round's latency is {quantities.duration(saved)} below the first one's"
    yield f"{price(compiled)}; energy: {phrases.energy_source(energy)}"
    yield waste(compiled)
    failed = failures(compiled.histories)
    if failed:
        yield f"failed: {', '.join(f'{count} {kind}' for kind, count in failed.items())}"


def waste(compiled: CompileResult) -> str:
    """Return the share of cold and failed candidates in the cost."""
    costs = {cost.fate: cost for cost in fate_costs(compiled.histories)}
    cold, failed = costs[Fate.COLD], costs[Fate.FAILED]
    if cold.time_share is None or failed.time_share is None:
        return "no candidate was measured"
    cold_time, failed_time = quantities.share(cold.time_share), quantities.share(failed.time_share)
    time = f"{cold_time} of the time for cold candidates, {failed_time} for failed ones"
    if cold.energy_share is None or failed.energy_share is None or compiled.spent.source == "unavailable":
        return time
    return f"{time}; of the energy {quantities.share(cold.energy_share)} and {quantities.share(failed.energy_share)}"


def recalled(compiled: CompileResult) -> int:
    """Return the number of candidates from earlier compilations."""
    return sum(min(history.recalled, len(history.candidates)) for history in compiled.histories)
