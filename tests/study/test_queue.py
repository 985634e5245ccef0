"""Studies that wait for their turn."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from onefold import Budget, Config, ParallelismOptions, Space, Study
from onefold.study import Home
from onefold.study.queue import Queue
from onefold.testing.toy import Spirals
from onefold.vocabulary.errors import InputError, QueueBusy, StoreError
from onefold.vocabulary.records import StudyState
from onefold.vocabulary.space import Float

TINY = Budget(trials=2, max_epochs=1)


def a_study(home: Home, name: str) -> Study:
    return Study(Spirals(), budget=TINY, name=name, home=home, parallelism=ParallelismOptions(engine="inline"))


def test_studies_are_served_first_come_first_and_their_response_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    queue = Queue(home)
    assert [queue.submit(a_study(home, name)) for name in ("b", "a")] == [0, 1]
    assert queue.run() == 2
    first, second = queue.submissions()
    assert (first.study, second.study) == ("b", "a")
    assert first.ended is not None
    assert second.began is not None
    assert first.submitted < first.ended <= second.began
    assert second.response_s is not None
    assert second.response_s > 0
    assert Study.open("a", home=home).record.state is StudyState.DONE
    assert queue.waiting() == []
    assert queue.run() == 0


def test_a_study_that_fails_does_not_hold_the_others_up(tmp_path: Path) -> None:
    home = Home(tmp_path)
    queue, told = Queue(home), list[str]()
    workload = tmp_path / "mine.py"
    workload.write_text(
        "from onefold.testing.toy import Spirals\n"
        "class Mine(Spirals):\n"
        "    def build(self, config):\n"
        "        raise RuntimeError('no')\n"
    )
    queue.submit(
        Study(str(workload), budget=TINY, name="broken", home=home, parallelism=ParallelismOptions(engine="inline"))
    )
    queue.submit(a_study(home, "sound"))
    assert queue.run(on_event=told.append) == 2
    assert "broken: failed" in told
    assert "sound: done" in told


def test_who_comes_while_the_queue_is_served_is_served_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    queue = Queue(home)
    queue.submit(a_study(home, "one"))
    server = threading.Thread(target=queue.run)
    server.start()
    while not queue.is_served and server.is_alive():
        time.sleep(0.01)
    queue.submit(a_study(home, "two"))
    if server.is_alive():
        with pytest.raises(QueueBusy):
            queue.run()
    server.join(timeout=60)
    queue.run()
    assert all(one.ended is not None for one in queue.submissions())


def test_what_a_killed_runner_left_is_taken_up_first(tmp_path: Path) -> None:
    home = Home(tmp_path)
    queue = Queue(home)
    queue.submit(a_study(home, "cut"))
    queue.submit(a_study(home, "next"))
    queue._save(replace(queue.submissions()[0], began=1.0))
    queue.run()
    cut = queue.submissions()[0]
    assert (cut.study, cut.began) == ("cut", 1.0)
    assert cut.ended is not None


def test_a_function_of_a_program_cannot_wait(tmp_path: Path) -> None:
    home = Home(tmp_path)

    def square(config: Config) -> float:
        return float(config.x) ** 2

    study = Study(square, Space(x=Float(-1, 1)), home=home)
    with pytest.raises(InputError, match="move the workload into a file"):
        Queue(home).submit(study)


def test_a_study_that_somebody_else_runs_waits_on(tmp_path: Path) -> None:
    home = Home(tmp_path)
    queue = Queue(home)
    queue.submit(a_study(home, "held"))
    with home.study_lock("held"), pytest.raises(StoreError, match="stays in the queue"):
        queue.run()
    assert [one.study for one in queue.waiting()] == ["held"]
    assert queue.run() == 1
