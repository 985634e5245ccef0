"""What compiling a model came to, in a few words: the runtime to take, what was saved, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onefold.report import phrases
from onefold.report.kernels.costs import Fate, failures, fate_costs, joules_per_ms_saved, saved_s
from onefold.report.tile import Tile
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CompileResult, RuntimeLatency
from onefold.vocabulary.records import Energy

COMPILED = "tvm"  # the runtime that the rounds are about
FASTEST = "it measured fastest"
SLOWER = "another measured faster"


def aim(compiled: CompileResult) -> str:
    """What was compiled for, and how."""
    threads = quantities.count(compiled.threads, "thread")
    how = f"graph optimisation level {compiled.level}, strategy {compiled.strategy}"
    return f"on {compiled.device}, for {compiled.target}, {threads}, {how}"


def recommended(compiled: CompileResult) -> RuntimeLatency | None:
    """The runtime to take; None where it was not measured."""
    return next((one for one in compiled.runtimes if one.name == compiled.recommended), None)


def reason(compiled: CompileResult) -> str:
    """Why that runtime."""
    chosen = recommended(compiled)
    if chosen is None:
        return "it was not measured" if compiled.runtimes and compiled.recommended else "no runtime was measured"
    others = [one for one in compiled.runtimes if one is not chosen and math.isfinite(one.latency_s)]
    second = min(others, key=lambda one: one.latency_s, default=None)
    if second is None or not chosen.latency_s > 0:
        return FASTEST
    if second.latency_s < chosen.latency_s:
        return SLOWER
    return f"{FASTEST}, {quantities.factor(second.latency_s / chosen.latency_s)} as fast as {second.name}"


def result(compiled: CompileResult) -> str:
    """The runtime to take and why, on one line."""
    return f"take {compiled.recommended}; {reason(compiled)}" if compiled.recommended else reason(compiled)


def outcome(compiled: CompileResult) -> Iterator[tuple[str, str]]:
    """What came out, name by name."""
    yield "recommended", compiled.recommended or quantities.NOTHING
    yield "why", reason(compiled)
    yield "error against the model's own answers", error(compiled)
    yield "library", compiled.folder or "none was kept"
    yield "why it stopped", compiled.why_stopped or quantities.NOTHING


def error(compiled: CompileResult) -> str:
    """The largest difference from what the model itself answers."""
    if not math.isfinite(compiled.error):
        return "not known"
    if compiled.error == 0:
        return "none"
    return f"{quantities.rounded(compiled.error, 2)} of the largest answer"


def tiles(compiled: CompileResult) -> Iterator[Tile]:
    """The compilation in four numbers."""
    chosen = recommended(compiled)
    latency = quantities.NOTHING if chosen is None else quantities.duration(chosen.latency_s)
    note = reason(compiled) if chosen is None else f"{chosen.name}: {reason(compiled)}"
    yield Tile("Latency, recommended runtime", latency, note, accent=chosen is not None)
    yield Tile("Whole model, first to last round", improvement(compiled), progress(compiled))
    spent = compiled.spent
    time = quantities.duration(spent.time_s) if spent.seconds else quantities.NOTHING
    yield Tile("Time", time, time_note(compiled))
    estimate = spent.energy.joules is not None and spent.source == "modelled"
    energy_note = f"{phrases.energy_source(spent.energy)}; {price(compiled)}"
    yield Tile("Energy", phrases.energy(spent.energy), energy_note, badge="estimate" if estimate else "")


def improvement(compiled: CompileResult) -> str:
    """The whole model's latency before and after; once where there is one round, and their unit once if it is one."""
    if not compiled.rounds:
        return quantities.NOTHING
    first, last = (quantities.duration(one.latency_s) for one in (compiled.rounds[0], compiled.rounds[-1]))
    if first == last:
        return last
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first} →\N{NO-BREAK SPACE}{last}"


def progress(compiled: CompileResult) -> str:
    """What the rounds brought, and of how many candidates."""
    rounds = compiled.rounds
    if not rounds:
        return "no round has ended"
    first, saved = rounds[0].latency_s, saved_s(compiled)
    gain = f"{quantities.share(saved / first)} less" if saved > 0 and first > 0 else "no faster"
    return f"{gain}, {quantities.count(len(rounds), 'round')}, {quantities.count(rounds[-1].tried, 'candidate')}"


def time_note(compiled: CompileResult) -> str:
    """Where most of the time went."""
    seconds, total = compiled.spent.seconds, compiled.spent.time_s
    if not total > 0:
        return "no time was recorded"
    name = max(seconds, key=lambda phase: seconds[phase])
    return f"{quantities.share(seconds[name] / total)} of it: {name}"


def price(compiled: CompileResult) -> str:
    """What each millisecond that was saved cost in energy."""
    if saved_s(compiled) <= 0:
        return "nothing saved"
    cost = joules_per_ms_saved(compiled)
    told = phrases.energy(Energy(cost, compiled.spent.source))
    return (
        f"{quantities.duration(saved_s(compiled))} saved" if told == quantities.NOTHING else f"{told} for each ms saved"
    )


def brought(compiled: CompileResult) -> Iterator[str]:
    """What was saved, for how much, and what went to waste."""
    saved, energy = saved_s(compiled), compiled.spent.energy
    if saved > 0:
        yield f"the whole model takes {quantities.duration(saved)} less after the last round than after the first"
    yield f"{price(compiled)}; energy: {phrases.energy_source(energy)}"
    yield waste(compiled)
    failed = failures(compiled.histories)
    if failed:
        yield f"failed: {', '.join(f'{count} {kind}' for kind, count in failed.items())}"


def waste(compiled: CompileResult) -> str:
    """How much went to candidates that taught nothing or failed."""
    costs = {cost.fate: cost for cost in fate_costs(compiled.histories)}
    cold, failed = costs[Fate.COLD], costs[Fate.FAILED]
    if cold.time_share is None or failed.time_share is None:
        return "no candidate was measured"
    cold_time, failed_time = quantities.share(cold.time_share), quantities.share(failed.time_share)
    said = f"{cold_time} of the time to cold candidates, {failed_time} to failed ones"
    if cold.energy_share is None or failed.energy_share is None or compiled.spent.source == "unavailable":
        return said
    return f"{said}; of the energy {quantities.share(cold.energy_share)} and {quantities.share(failed.energy_share)}"


def recalled(compiled: CompileResult) -> int:
    """Candidates that were known from earlier compilations."""
    return sum(min(history.recalled, len(history.candidates)) for history in compiled.histories)
