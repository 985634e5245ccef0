"""A compilation as JSON. No number is rounded.

    format        1; incremented when a key changes its meaning
    model, device, target, threads, level, strategy, recommended, why_stopped, folder
    error         the largest difference from the model's outputs, relative to the largest output
    runtimes      name, latency_s, threads, note; fastest first
    rounds        number, model, latency_s (of the whole model), ended_s, tried (candidates so far), spent (by all
                  models so far), operators: operator, best_s (of one run), time_s (of all its runs), tried, filtered,
                  failed, suspended
    histories     operator (key, name, weight, kind, shapes, flops), candidates (in the order they were measured: trace,
                  latency_s, failure, build_s, run_s, joules, …), line (LOESS fit at each), is_cold (of each),
                  recalled (how many of the first are known from earlier compilations)
    spent         seconds and joules by phase (search, build, run, update, whole), source of the joules
    fates         cost of the measured candidates, without recalled ones: fate (hot, cold or failed), candidates,
                  time_s, joules, time_share and energy_share (of all three)
    failures      of the same candidates, the number of failures by kind (invalid, slow build, slow run, crash, wrong)
    saved_s       latency of the whole model after the first round minus that after the last
    joules_per_ms_saved   null if nothing was saved or the energy is unknown
    levels        number, latency_s (before tuning), compile_s, operators, joules (of compiling)

Times are seconds, `ended_s` since the compilation began. A number that is not finite is null.
"""

from __future__ import annotations

from typing import Any

from onefold.report.json_values import finite
from onefold.report.kernels.costs import failures, fate_costs, joules_per_ms_saved, saved_s
from onefold.vocabulary.kernels import CandidateHistory, CompileResult, TuningRound
from onefold.vocabulary.records import to_json

FORMAT = 1


def as_json(compiled: CompileResult) -> dict[str, Any]:
    """Return the compilation as values that `json.dumps(..., allow_nan=False)` accepts."""
    more = {
        "rounds": [_round(tuning_round) for tuning_round in compiled.rounds],
        "histories": [_history(history) for history in compiled.histories],
        "fates": to_json(fate_costs(compiled.histories)),
        "failures": failures(compiled.histories),
        "saved_s": saved_s(compiled),
        "joules_per_ms_saved": joules_per_ms_saved(compiled),
    }
    content: dict[str, Any] = finite({"format": FORMAT, **to_json(compiled), **more})
    return content


def _round(tuning_round: TuningRound) -> dict[str, Any]:
    operators = [{**to_json(state), "time_s": state.time_s} for state in tuning_round.operators]
    return {**to_json(tuning_round), "tried": tuning_round.tried, "operators": operators}


def _history(history: CandidateHistory) -> dict[str, Any]:
    return {**to_json(history), "is_cold": list(history.is_cold)}
