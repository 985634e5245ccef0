"""1,000 `kill -9` and 200 SIGSTOPs: nothing lost, nothing recorded twice, the same decisions, no mixed model folder.

Toy studies (inline, with two workers, with the model measured on this machine, and in a queue), measurements,
retrainings, compressions and compilations run in processes that are killed at random moments, or at a system call that
changes a file (write, fsync, rename, unlink, mkdir, truncate, or opening a new file), before or after the call takes
effect. The process is traced with ptrace(2) (Linux on x86-64; elsewhere all kills are at random moments), so SQLite's
calls count like those of Python, and nothing of Onefold is changed. Coordinators, workers, measuring processes, servers
of a queue and their studies, and the commands that renew model folders are killed; the first three are also suspended.
A command that was killed is started again until it ends by itself.

After every kill of a command, no process that it started may be left within 30 s, and every model folder must be one
whole generation: each file is in the manifest and matches its digest. At the end, decisions, results and epochs in the
store must equal those of an undisturbed run, except for times.

Outcomes are saved in `--state FOLDER` after each scenario: a run that was interrupted continues where it stopped, and
several may run beside each other. `--minutes` ends a part early.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from claims import Claim, argument_parser, conclude, table
from fault_injection.outcomes import OutcomeFiles, ScenarioOutcome, totals
from fault_injection.scenario import AT_RANDOM, Scenario, Undisturbed
from fault_injection.scenarios import KINDS, Templates

KILLS, STOPS = 1000, 200
QUICK_KILLS, QUICK_STOPS = 60, 6
KILLS_PER_SCENARIO, STOPS_PER_SCENARIO = 8, 2
MIN_KILLS = 2


def next_kind(outcomes: list[ScenarioOutcome], kills: int, rng: random.Random) -> type[Scenario]:
    """Draw the next kind in proportion to the kills that its share lacks, so that parallel parts differ.

    A quick run leaves out kinds with a share of a single kill.
    """
    killed = Counter[str]()
    for outcome in outcomes:
        killed[outcome.scenario] += outcome.killed
    shares = {kind: share for kind, share in KINDS.items() if kills * share >= MIN_KILLS}
    missing = {kind: max(0.0, kills * share - killed[kind.name]) for kind, share in shares.items()}
    if not any(missing.values()):
        return max(KINDS, key=lambda kind: KINDS[kind])
    return rng.choices(list(missing), list(missing.values()))[0]


def run(state: OutcomeFiles, kills: int, stops: int, minutes: float | None) -> None:
    """Run scenarios until there are enough kills and stops, or the time is up."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    undisturbed: dict[type[Scenario], Undisturbed] = {}
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        templates = Templates(Path(folder) / "templates").path
        while deadline is None or time.monotonic() < deadline:
            outcomes = state.outcomes()
            kills_left = kills - sum(outcome.killed for outcome in outcomes)
            stops_left = stops - sum(outcome.stopped for outcome in outcomes)
            if kills_left <= 0 and stops_left <= 0:
                return
            kind = next_kind(outcomes, kills, random.Random())
            scenario = kind(templates)
            if kind not in undisturbed:
                undisturbed[kind] = scenario.undisturbed(Path(folder) / kind.__name__)
            disturbed = Path(folder) / "disturbed"
            seed = int.from_bytes(os.urandom(4), "big")
            outcome = scenario.disturbed(
                disturbed,
                undisturbed[kind],
                seed,
                max(0, min(KILLS_PER_SCENARIO, kills_left)),
                max(0, min(STOPS_PER_SCENARIO, stops_left)),
            )
            state.save(outcome)
            shutil.rmtree(disturbed, ignore_errors=True)
            print(
                f"{outcome.scenario}: {outcome.killed} kills, {outcome.stopped} stops, {outcome.seconds:.0f} s; "
                f"lost {outcome.lost}, twice {outcome.twice}, different {outcome.different}, mixed {outcome.mixed}, "
                f"left {outcome.orphans}, unfinished {outcome.unfinished} {outcome.notes or ''}",
                flush=True,
            )


def rows_of(outcomes: list[ScenarioOutcome]) -> list[dict[str, Any]]:
    """Return one row per kind of scenario."""
    rows = []
    for name in [kind.name for kind in KINDS]:
        of_kind = [outcome for outcome in outcomes if outcome.scenario == name]
        row: dict[str, Any] = {"scenario": name, "runs": len(of_kind)}
        for column in ("killed", "stopped", "lost", "twice", "different", "mixed", "orphans", "unfinished"):
            row[column] = sum(getattr(outcome, column) for outcome in of_kind)
        rows.append(row)
    return rows


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--state", type=Path, help="folder of the outcomes so far; by default a new one")
    parser.add_argument("--minutes", type=float, help="end this part after so many minutes")
    options = parser.parse_args()
    kills, stops = (QUICK_KILLS, QUICK_STOPS) if options.quick else (KILLS, STOPS)
    with tempfile.TemporaryDirectory() as folder:
        state = OutcomeFiles(options.state or Path(folder))
        run(state, kills, stops, options.minutes)
        outcomes = state.outcomes()
    rows = rows_of(outcomes)
    by_kill, by_stop = totals([each.kills for each in outcomes]), totals([each.stops for each in outcomes])
    table(rows)
    table([{"disturbance": name, "times": times} for name, times in sorted((by_kill + by_stop).items())])
    killed, stopped = by_kill.total(), by_stop.total()
    faults = {column: sum(row[column] for row in rows) for column in rows[0] if column not in ("scenario", "runs")}
    at_calls = sum(times for name, times in by_kill.items() if not name.endswith(AT_RANDOM))
    claims = [
        Claim("kill -9", f">= {kills}", f"{killed}, {at_calls} of them at system calls", killed >= kills),
        Claim("SIGSTOP", f">= {stops}", str(stopped), stopped >= stops),
        Claim("results and epochs lost", "0", str(faults["lost"]), faults["lost"] == 0),
        Claim("rungs and epochs recorded twice", "0", str(faults["twice"]), faults["twice"] == 0),
        Claim("studies with different decisions", "0", str(faults["different"]), faults["different"] == 0),
        Claim("model folders with files of two generations", "0", str(faults["mixed"]), faults["mixed"] == 0),
        Claim("processes and temporary folders left", "0", str(faults["orphans"]), faults["orphans"] == 0),
        Claim("commands and studies that did not end", "0", str(faults["unfinished"]), faults["unfinished"] == 0),
    ]
    figures = {"scenarios": rows, "kills": dict(by_kill), "stops": dict(by_stop)}
    conclude("kills", claims, figures, quick=options.quick)


if __name__ == "__main__":
    main()
