"""50 random `kill -9` of coordinator or worker: no result lost, none recorded twice, identical decisions.

The same study (toy spirals, TPE with successive halving, two workers) runs once undisturbed, then repeatedly with
kills: at random moments SIGKILL is sent to the coordinator or to a worker, and the study is resumed until it ends.
Everything in the store except clock readings must equal the undisturbed run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from claims import Claim, arguments, conclude, table

from onefold.study import Home
from onefold.vocabulary.records import RungState

OPTIONS = ["--trials", "18", "--max-epochs", "27", "--parallel", "2", "--seed", "5", "--name", "s"]
TIMED = ("train_time_s", "energy_j", "memory_bytes")


def start(home: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "onefold.cli", *words, "--home", str(home), "--json"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def tune(home: Path) -> subprocess.Popen[bytes]:
    return start(home, "tune", "onefold.testing.toy:Spirals", *OPTIONS, "--knobs", "off")


def run_with_kills(home: Path, kills: int, rng: random.Random) -> dict[str, int]:
    """Run one study to its end with at most `kills` kills; return their number per kind of process."""
    killed = {"coordinator": 0, "worker": 0}
    process = tune(home)
    while process.poll() is None or process.returncode != 0:
        try:
            process.wait(timeout=rng.uniform(1.0, 8.0) if sum(killed.values()) < kills else None)
        except subprocess.TimeoutExpired:
            workers = psutil.Process(process.pid).children()
            if workers and rng.random() < 0.5:
                os.kill(rng.choice(workers).pid, signal.SIGKILL)
                killed["worker"] += 1
                continue
            process.kill()
            process.wait()
            killed["coordinator"] += 1
        if process.returncode == 0:
            break
        if process.returncode != -signal.SIGKILL:
            sys.exit(f"the study ended with {process.returncode}")
        with closing(Home(home).store()) as store:
            begun = bool(store.studies())
        process = start(home, "resume", "s") if begun else tune(home)
    return killed


def facts(home: Path) -> dict[str, Any]:
    with closing(Home(home).store()) as store:
        trials, epochs = store.trials("s"), store.epochs("s")
    rungs = sorted((rung for trial in trials for rung in trial.rungs), key=lambda rung: rung.decision)
    return {
        "decisions": [(r.decision, r.trial, r.rung, r.grant, dict(trials[r.trial].config)) for r in rungs],
        "results": [(r.decision, _untimed(r.metrics)) for r in rungs if r.state is RungState.DONE],
        "epochs": [(e.trial, e.rung, e.number, _untimed(e.metrics)) for e in epochs],
    }


def _untimed(metrics: Any) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((name, value) for name, value in metrics.items() if name not in TIMED))


def main() -> None:
    options = arguments(__doc__)
    kills = 12 if options.quick else 50
    rng = random.Random(2026)
    rows: list[dict[str, Any]] = []
    lost = twice = different = 0
    with tempfile.TemporaryDirectory() as folder:
        run_with_kills(Path(folder) / "undisturbed", 0, rng)
        undisturbed = facts(Path(folder) / "undisturbed")
        while sum(row["coordinator"] + row["worker"] for row in rows) < kills:
            left = kills - sum(row["coordinator"] + row["worker"] for row in rows)
            home = Path(folder) / f"killed-{len(rows)}"
            killed = run_with_kills(home, left, rng)
            seen = facts(home)
            lost += sum(result not in seen["results"] for result in undisturbed["results"])
            lost += sum(epoch not in seen["epochs"] for epoch in undisturbed["epochs"])
            keys = [epoch[:3] for epoch in seen["epochs"]]
            twice += len(keys) - len(set(keys))
            different += seen["decisions"] != undisturbed["decisions"]
            rows.append({"study": len(rows), **killed, "rungs": len(seen["results"]), "epochs": len(seen["epochs"])})
            table(rows[-1:])
    total = sum(row["coordinator"] + row["worker"] for row in rows)
    table(rows)
    claims = [
        Claim("random kill -9", f">= {kills}", str(total), total >= kills),
        Claim("results and epochs lost", "0", str(lost), lost == 0),
        Claim("epochs recorded twice", "0", str(twice), twice == 0),
        Claim("studies with different decisions", "0", f"{different} of {len(rows)}", different == 0),
    ]
    conclude("kills", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
