"""The queue of studies."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from onefold import Budget, Config, Space, Study
from onefold.store import Submission
from onefold.study import Home
from onefold.study.queue import Queue
from onefold.testing.toy import Spirals
from onefold.vocabulary.errors import InputError, QueueBusy, StoreError
from onefold.vocabulary.records import StudyState
from onefold.vocabulary.space import Float
from small_studies import small_study

TINY = Budget(trials=2, max_epochs=1)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def a_study(home: Home, name: str) -> Study:
    return small_study(Spirals(), home.path, budget=TINY, name=name)


def in_this_process(home: Home, submission: Submission) -> int:
    Study.open(submission.study, home=home).run()
    return 0


def test_studies_run_in_their_own_processes_and_a_failing_one_does_not_block_the_next(
    tmp_path: Path, home: Home
) -> None:
    workload = tmp_path / "mine.py"
    workload.write_text(
        "from onefold.testing.toy import Spirals\n"
        "class Mine(Spirals):\n"
        "    def build(self, config):\n"
        "        raise RuntimeError('no')\n"
    )
    queue, events = Queue(home), list[str]()
    queue.submit(small_study(str(workload), home.path, budget=TINY, name="broken"))
    queue.submit(a_study(home, "sound"))
    assert queue.run(on_event=events.append) == 2
    assert {"broken: failed", "sound: done"} <= set(events)
    assert Study.open("sound", home=home).record.state is StudyState.DONE


def test_studies_run_in_the_order_of_their_submission_and_response_times_are_kept(home: Home) -> None:
    queue = Queue(home, in_this_process)
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


def test_a_study_submitted_while_the_queue_is_served_is_served_too(home: Home) -> None:
    is_serving, may_end = threading.Event(), threading.Event()

    def wait(home: Home, submission: Submission) -> int:
        is_serving.set()
        assert may_end.wait(60)
        return 0

    queue = Queue(home, wait)
    queue.submit(a_study(home, "one"))
    server = threading.Thread(target=queue.run)
    server.start()
    assert is_serving.wait(60)
    assert queue.is_served
    queue.submit(a_study(home, "two"))
    with pytest.raises(QueueBusy):
        Queue(home).run()
    may_end.set()
    server.join(timeout=60)
    assert all(submission.ended is not None for submission in queue.submissions())


def test_a_study_whose_server_was_killed_is_resumed_first(home: Home) -> None:
    queue = Queue(home, in_this_process)
    queue.submit(a_study(home, "cut"))
    queue.submit(a_study(home, "next"))
    queue._save(replace(queue.submissions()[0], began=1.0))
    queue.run()
    cut = queue.submissions()[0]
    assert (cut.study, cut.began) == ("cut", 1.0)
    assert cut.ended is not None


def test_a_function_of_a_running_program_cannot_be_queued(home: Home) -> None:
    def square(config: Config) -> float:
        return float(config.x) ** 2

    study = Study(square, Space(x=Float(-1, 1)), home=home)
    with pytest.raises(InputError, match="move the workload into a file"):
        Queue(home).submit(study)


def test_a_study_that_another_process_runs_stays_in_the_queue(home: Home) -> None:
    queue = Queue(home)
    queue.submit(a_study(home, "held"))
    with home.study_lock("held"), pytest.raises(StoreError, match="stays in the queue"):
        queue.run()
    assert [submission.study for submission in queue.waiting()] == ["held"]
