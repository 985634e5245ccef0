from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import Objective, at_least, at_most
from onefold.serving.ranked_trials import best_points, cost_goal, energy_source, source_label, surface_costs
from onefold.serving.recommendation import NEAR, Recommendation, recommend
from onefold.vocabulary.objective import Goal
from onefold.vocabulary.pareto import dominates
from onefold.vocabulary.preference import Preference
from onefold.vocabulary.records import (
    Config,
    Energy,
    Failure,
    FailureKind,
    Grant,
    Rung,
    RungState,
    Trial,
    TrialState,
    from_json,
    to_json,
)
from onefold.vocabulary.serving import LatencySource, OptimizeFor, Served, ServingPoint, Surface

ACCURACY = Goal("accuracy", True)
FASTEST = Objective(minimize="latency_s", require={"accuracy": at_least(0.9)})
BOARD = "board"


def served(
    batch: int,
    threads: int,
    latency_s: float,
    source: LatencySource = LatencySource.EMULATED,
    energy: Energy | None = None,
    graph_level: str = "all",
) -> Served:
    times = (latency_s, latency_s * 1.1, latency_s * 1.2, latency_s * 0.99, latency_s * 1.01)
    energy = energy or Energy(latency_s * 4, "modelled")
    return Served(ServingPoint(batch, threads, graph_level), *times, 20, energy, 2**26, source)


def surface(latency_s: float, source: LatencySource = LatencySource.EMULATED, size_bytes: int = 2**20) -> Surface:
    """A surface whose batch size 1 has this latency on one thread."""
    known = [
        served(batch, threads, latency_s * (0.5 + 0.5 * batch) / threads**0.5, source)
        for batch in (1, 4, 16)
        for threads in (1, 2)
    ]
    return Surface(f"{latency_s}", BOARD, tuple(known), size_bytes)


def trial(number: int, metrics: Mapping[str, float], level: int = 9, failure: Failure | None = None) -> Trial:
    rung = Rung(number, number, 0, 0, Grant(level, level, 1.0), state=RungState.DONE, metrics=metrics)
    broken = Rung(100 + number, number, 1, 0, Grant(9, 9, 1.0), state=RungState.FAILED, failure=failure)
    return Trial(number, Config(), TrialState.DONE, (rung, broken) if failure else (rung,))


def study(
    *rows: tuple[float, float],
    objective: Objective = FASTEST,
    levels: Mapping[int, int] | None = None,
    source: LatencySource = LatencySource.EMULATED,
    quality: Goal = ACCURACY,
) -> Recommendation | None:
    """Return a recommendation for trials of these qualities and latencies."""
    servings = {(number, BOARD): surface(latency_s, source) for number, (_, latency_s) in enumerate(rows)}
    trials = [
        trial(number, {quality.metric: value, **servings[number, BOARD].metrics()}, (levels or {}).get(number, 9))
        for number, (value, _) in enumerate(rows)
    ]
    return recommend(trials, objective, servings, [BOARD], quality)


def present(given: Recommendation | None) -> Recommendation:
    assert given is not None
    return given


def test_fastest_feasible_trial_is_compared_with_the_top_1() -> None:
    this = present(study((0.95, 0.004), (0.946, 0.002), (0.85, 0.001), (0.91, 0.003)))
    assert (this.trial, this.keeps, this.shortfalls) == (1, True, ())
    assert this.reasons == (
        "trial 1 meets accuracy>=0.9 and has the lowest latency_s of the 3 that do: 1.41 ms (emulated)",
        "compared with the trial of the highest accuracy (trial 0) it is 2x faster, for 0.4 points of accuracy",
    )


def test_trials_are_compared_at_equal_effort() -> None:
    """The winner's points are measured precisely; the comparison uses the quick measurements."""
    servings = {(0, BOARD): surface(0.004), (1, BOARD): surface(0.002)}
    trials = [trial(n, {"accuracy": 0.95, **servings[n, BOARD].metrics()}) for n in (0, 1)]
    again = surface(0.0015)
    this = present(recommend(trials, FASTEST, {**servings, (1, BOARD): again}, [BOARD], ACCURACY))
    on = this.devices[0]
    mine = next(each for each in on.alternatives if each.trial == 1)
    assert mine.costs["latency_s"] == servings[1, BOARD].metrics()["latency_s"]
    assert on.points["latency"] == again.best(OptimizeFor.LATENCY)


def test_cheaper_trial_near_the_top_1_is_mentioned() -> None:
    this = present(study((0.95, 0.004), (0.945, 0.002), (0.90, 0.001), objective=Objective("accuracy")))
    assert this.trial == 0
    assert this.reasons == (
        "trial 0 has the highest accuracy of the 3 trials: 0.95",
        "trial 1 is nearly as good and is 2x faster, for 0.5 points of accuracy",
    )
    (on,) = this.devices
    assert [(item.trial, item.near) for item in on.alternatives] == [(1, True), (0, True)]
    assert on.alternatives[0].relative["latency_s"] == pytest.approx(0.5)
    assert on.alternatives[0].relative["throughput_per_s"] == pytest.approx(2.0)
    assert on.alternatives[1].relative["latency_s"] == 1.0
    assert on.alternatives[0].labels["latency_s"] == "emulated"
    assert on.alternatives[0].labels["energy_per_sample_j"] == "modelled"
    assert "size_bytes" not in on.alternatives[0].labels


@pytest.mark.parametrize(
    ("goal", "says"),
    [
        ("throughput_per_s", "has 2x the throughput"),
        ("energy_per_sample_j", "takes 50 % less energy per sample"),
        ("latency_p99_s", "is 2x faster at p99"),
    ],
)
def test_cost_follows_the_objective(goal: str, says: str) -> None:
    more = goal == "throughput_per_s"
    objective = Objective(goal if more else (), () if more else goal)
    assert cost_goal(objective) == Goal(goal, more)
    this = present(study((0.95, 0.004), (0.9, 0.002), objective=objective))
    assert this.trial == 1
    assert f"(trial 0) it {says}, for 5 points of accuracy" in this.reasons[1]


def test_better_infeasible_trial_is_mentioned() -> None:
    objective = Objective("accuracy", require={"accuracy": at_most(0.94)})
    this = present(study((0.95, 0.004), (0.9, 0.004), objective=objective))
    assert this.trial == 1
    assert this.reasons[-1] == (
        "trial 0 has the highest accuracy, 5 points of accuracy better, but it misses a requirement"
    )


def test_shortfall_of_the_closest_trial() -> None:
    objective = Objective("accuracy", require={"latency_s": at_most(0.001), "accuracy": at_least(0.5)})
    this = present(study((0.95, 0.004), (0.9, 0.0014 * 2**0.5), objective=objective))
    assert not this.keeps
    assert this.trial == 1
    assert this.shortfalls == (
        "no trial meets latency_s<=0.001; the closest, trial 1, needs 0.0014 (40 % too much, emulated)",
    )
    assert "no trial meets every requirement; trial 1 comes closest" in this.reasons[0]


def test_conflicting_requirements_are_explained() -> None:
    objective = Objective("accuracy", require={"latency_s": at_most(0.002), "accuracy": at_least(0.94)})
    this = present(study((0.95, 0.008), (0.9, 0.001), objective=objective))
    assert this.shortfalls == (
        "each requirement is met by some trial, but none meets all; trial 1 comes closest",
        "trial 1 misses accuracy>=0.94: it reaches 0.9 (4.26 % too little)",
    )


def test_measured_values_have_no_label() -> None:
    this = present(study((0.95, 0.004), (0.95, 0.002), source=LatencySource.MEASURED))
    assert this.reasons[0].endswith("1.41 ms")
    assert this.devices[0].alternatives[0].labels == {"energy_per_sample_j": "modelled"}
    assert "emulated" not in " ".join(this.devices[0].reasons)


def test_label_is_the_weakest_source() -> None:
    rapl = Energy(1.0, "rapl")
    assert source_label(served(1, 1, 0.1, LatencySource.MEASURED, rapl), "energy_per_sample_j") == ""
    assert source_label(served(1, 1, 0.1, LatencySource.PREDICTED, rapl), "energy_per_sample_j").startswith(
        "predicted, "
    )
    assert source_label(served(1, 1, 0.1, LatencySource.PREDICTED), "size_bytes") == ""
    assert energy_source(served(1, 1, 0.1, LatencySource.MEASURED, rapl)) == "rapl"
    assert energy_source(served(1, 1, 0.1, LatencySource.PREDICTED, rapl)) == "predicted"
    assert energy_source(served(1, 1, 0.1)) == "modelled"


def test_points_are_explained() -> None:
    this = present(study((0.95, 0.004)))
    (on,) = this.devices
    assert {purpose: item.point.batch_size for purpose, item in on.points.items()} == {
        "latency": 1,
        "throughput": 16,
        "energy": 16,
    }
    assert on.reasons == (
        "batch 1 on 2 threads has the lowest latency, 2.83 ms (emulated): 1.4x faster than 1 thread",
        "batch 16 on 2 threads has the highest throughput, 665.5/s (emulated): 1.9x that of batch 1",
        "the same point takes the least energy, 6.01 mJ (modelled) per sample",
    )


def test_points_without_improvement_are_explained() -> None:
    known = (served(1, 1, 0.001, graph_level="all"), served(1, 2, 0.002, graph_level="basic"), served(8, 1, 0.1))
    servings = {(0, BOARD): Surface("s", BOARD, known, 1)}
    metrics = {"accuracy": 0.9, **servings[0, BOARD].metrics()}
    this = present(recommend([trial(0, metrics)], Objective("accuracy"), servings, [BOARD], ACCURACY))
    first, second, _ = this.devices[0].reasons
    assert (
        first
        == "batch 1 on 1 thread (graph level all) has the lowest latency, 1 ms (emulated); more threads are not faster"
    )
    assert second.endswith("larger batches do not increase it")


def test_batch_that_misses_the_latency_bound_is_mentioned() -> None:
    objective = Objective("accuracy", require={"latency_s": at_most(0.01)})
    this = present(study((0.95, 0.004), objective=objective))
    assert this.devices[0].reasons[-1] == "a batch of 16 takes 24 ms (emulated), which misses latency_s<=0.01"


def test_energy_needs_known_joules() -> None:
    nothing = Energy(None, "unavailable")
    known = (served(1, 1, 0.1, energy=Energy(5.0, "modelled")), served(2, 1, 1e-6, energy=nothing))
    mixed = Surface("s", BOARD, known, 1)
    assert best_points(mixed)["energy"] is known[0]
    assert surface_costs(mixed)[0]["energy_per_sample_j"] == 5.0
    bare = Surface("s", BOARD, (known[1],), 1)
    assert set(best_points(bare)) == {"latency", "throughput"}
    assert "energy_per_sample_j" not in surface_costs(bare)[0]


def test_low_levels_and_failed_trials_are_not_compared() -> None:
    this = present(study((0.95, 0.004), (0.945, 0.002), (0.949, 0.001), (0.9, 0.003), levels={1: 4, 2: 1, 3: 1}))
    assert this.devices[0].compared == (0, 1)
    assert {item.trial for item in this.devices[0].alternatives} == {0, 1}
    servings = {(number, BOARD): surface(0.002) for number in range(2)}
    metrics = {"accuracy": 0.95, **servings[0, BOARD].metrics()}
    trials = [trial(0, metrics), trial(1, metrics, failure=Failure(FailureKind.HUNG, "it hung"))]
    assert present(recommend(trials, FASTEST, servings, [BOARD], ACCURACY)).devices[0].compared == (0,)


def test_top_1_is_the_best_compared_trial() -> None:
    """A trial that was stopped early because of its cost may be the most accurate."""
    on = present(study((0.96, 0.001), (0.98, 0.004), levels={0: 9, 1: 4})).devices[0]
    assert on.top == 1
    assert {candidate.trial: candidate.relative["latency_s"] for candidate in on.alternatives} == {0: 0.25, 1: 1.0}


def test_losses_are_compared_in_percent() -> None:
    quality = Goal("loss", False)
    rows = ((0.2, 0.004), (0.2015, 0.002), (0.21, 0.001))
    this = present(study(*rows, objective=Objective(minimize="loss"), quality=quality))
    assert [item.trial for item in this.devices[0].alternatives] == [1, 0]
    assert this.reasons[-1] == "trial 1 is nearly as good and is 2x faster, for 0.75 % of loss"


def test_a_guard_that_no_trial_meets_is_mentioned() -> None:
    guarded = Preference(guard={"accuracy": at_least(0.99)})
    objective = Objective("accuracy", "latency_s", prefer=guarded)
    this = present(study((0.95, 0.004), (0.9, 0.002), objective=objective))
    assert this.reasons[0].startswith(
        "trial 0 is on the Pareto front of 2 trials, none of which has accuracy>=0.99, and comes closest: highest acc"
    )
    alone = present(study((0.95, 0.004), objective=objective))
    assert "the only trial on the Pareto front, which has no trial with accuracy>=0.99: " in alone.reasons[0]


def test_several_goals_mention_the_front() -> None:
    this = present(study((0.95, 0.004), (0.9, 0.002), (0.8, 0.003), objective=Objective("accuracy", "latency_s")))
    assert this.reasons[0] == (
        f"trial {this.trial} is on the Pareto front of 2 trials and closest to the best of every goal: "
        "highest accuracy 0.95, latency_s 2.83 ms (emulated)"
    )
    assert this.devices[0].front == (0, 1)


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 0.9, 0.92, 0.95]), st.sampled_from([0.001, 0.002, 0.004])), min_size=1),
    st.sampled_from([None, "accuracy", "latency_s", "accuracy=2,latency_s=1"]),
)
def test_the_reasons_of_a_choice_from_a_front_hold(rows: list[tuple[float, float]], prefer: str | None) -> None:
    objective = Objective("accuracy", "latency_s", prefer=prefer).guarded("accuracy", maximize=True)
    this = present(study(*rows, objective=objective))
    reason, own = this.reasons[0], rows[this.trial]
    losses = [(-accuracy, latency_s) for accuracy, latency_s in rows]
    assert not any(dominates(other, losses[this.trial]) for other in losses)
    members = [row for row, own in zip(rows, losses) if not any(dominates(other, own) for other in losses)]
    limit = 0.95 * max(accuracy for accuracy, _ in rows)
    admitted = [row for row in members if row[0] >= limit - 1e-12]
    assert own in admitted
    assert int((re.findall(r"front of (\d+) trials", reason) or [1])[0]) == len(members)
    if counted := re.search(r"of the (\d+) with accuracy>=best-5% \(([\d.]+)\)", reason):
        assert (int(counted[1]), float(counted[2])) == (len(admitted), pytest.approx(limit, rel=1e-3))
    assert ("the only one with" in reason) == (len(admitted) == 1 < len(members))
    if "has the highest accuracy" in reason or "highest accuracy" in reason.partition(": ")[2]:
        assert own[0] == max(accuracy for accuracy, _ in rows)
    if "has the lowest latency_s" in reason:
        assert own[1] == min(latency_s for _, latency_s in admitted)
    if "lowest latency_s" in reason.partition(": ")[2]:
        assert own[1] == min(latency_s for _, latency_s in members)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.5, 0.9, 0.905, 0.91]),
            st.sampled_from([0.001, 0.002, 0.004]),
            st.sampled_from([1.0, 1.0001, 2.0, 30.0]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([None, "accuracy", "latency_s", "size"]),
)
def test_a_comparison_names_every_goal_that_is_worse(
    rows: list[tuple[float, float, float]], prefer: str | None
) -> None:
    objective = Objective("accuracy", ("latency_s", "size"), prefer=prefer).guarded("accuracy", maximize=True)
    servings = {(number, BOARD): surface(latency_s) for number, (_, latency_s, _) in enumerate(rows)}
    trials = [
        trial(number, {"accuracy": accuracy, "size": size, **servings[number, BOARD].metrics()})
        for number, (accuracy, _, size) in enumerate(rows)
    ]
    this = present(recommend(trials, objective, servings, [BOARD], ACCURACY))
    for reason in this.reasons[1:]:
        other = int(re.findall(r"trial (\d+)", reason)[0])
        praised, rival = (this.trial, other) if reason.startswith("compared with") else (other, this.trial)
        mine, theirs = rows[praised], rows[rival]
        if "at least as good" in reason:
            assert mine[0] >= theirs[0]
            assert (mine[1], mine[2]) == (min(mine[1], theirs[1]), min(mine[2], theirs[2]))
        if "nearly as good" in reason:
            assert mine[2] <= theirs[2]
        if "faster" in reason:
            assert (" size" in reason) == (mine[2] > theirs[2])
            assert (" of accuracy" in reason) == (mine[0] < theirs[0])


def test_unmeasured_device_is_mentioned() -> None:
    servings = {(0, BOARD): surface(0.004), (1, "other"): surface(0.004)}
    metrics = {"accuracy": 0.95, **servings[0, BOARD].metrics()}
    trials = [trial(0, metrics), trial(1, {**metrics, "accuracy": 0.9})]
    this = present(recommend(trials, Objective("accuracy"), servings, [BOARD, "other", "third"], ACCURACY))
    assert [on.device for on in this.devices] == [BOARD, "other"]
    other = this.on("other")
    assert other is not None
    assert (dict(other.points), other.top, this.on("third")) == ({}, 1, None)
    assert this.reasons[-2:] == (
        "trial 0 has not been measured on other",
        "trial 0 has not been measured on third",
    )


def test_labels_belong_to_their_device() -> None:
    servings = {(0, BOARD): surface(0.004), (0, "host"): surface(0.001, LatencySource.MEASURED)}
    metrics = {"accuracy": 0.95, **servings[0, BOARD].metrics(), **servings[0, "host"].metrics("host")}
    objective = Objective(minimize="latency_s@host")
    this = present(recommend([trial(0, metrics)], objective, servings, [BOARD, "host"], ACCURACY))
    assert this.reasons[0] == "trial 0 is the only one with a result: latency_s@host 707 µs"


def test_comparison_uses_the_device_of_the_objective() -> None:
    servings = {(n, BOARD): surface(0.004) for n in (0, 1)} | {(n, "host"): surface(0.002 - 0.001 * n) for n in (0, 1)}
    trials = [
        trial(n, {"accuracy": 0.95 - 0.01 * n, **servings[n, BOARD].metrics(), **servings[n, "host"].metrics("host")})
        for n in (0, 1)
    ]
    this = present(recommend(trials, Objective(minimize="latency_s@host"), servings, [BOARD, "host"], ACCURACY))
    assert this.reasons[1] == (
        "on host, compared with the trial of the highest accuracy (trial 0) it is 2x faster, for 1 point of accuracy"
    )


def test_failed_trial_is_recommended_only_as_the_closest() -> None:
    servings = {(0, BOARD): surface(0.002)}
    metrics = {"accuracy": 0.95, **servings[0, BOARD].metrics()}
    trials = [trial(0, metrics, failure=Failure(FailureKind.HUNG, "it hung"))]
    this = present(recommend(trials, FASTEST, servings, [BOARD], ACCURACY))
    assert this.reasons[0].startswith("every trial that meets accuracy>=0.9 failed later; trial 0 got furthest: ")
    assert this.devices == ()


def test_no_recommendation_without_a_result() -> None:
    assert study() is None
    assert recommend([Trial(0, Config())], FASTEST, {(0, BOARD): surface(0.1)}, [BOARD], ACCURACY) is None


def test_recommendation_without_surfaces() -> None:
    this = present(recommend([trial(0, {"accuracy": 0.9})], Objective("accuracy"), {}, [], ACCURACY))
    assert (this.trial, this.devices) == (0, ())


rows = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(1e-5, 10.0)), min_size=1, max_size=12)
objectives = st.sampled_from(
    [
        FASTEST,
        Objective("accuracy"),
        Objective("throughput_per_s"),
        Objective("accuracy", ("latency_s", "energy_per_sample_j")),
        Objective("accuracy", require={"latency_s": at_most(1e-3), "accuracy": at_least(0.6)}),
    ]
)


@given(rows, objectives, st.dictionaries(st.integers(0, 11), st.sampled_from([1, 3, 9])))
def test_recommendation_is_consistent_and_round_trips(
    given: list[tuple[float, float]], objective: Objective, levels: dict[int, int]
) -> None:
    this = present(study(*given, objective=objective, levels=levels))
    assert from_json(Recommendation, json.loads(json.dumps(to_json(this)))) == this
    (on,) = this.devices
    shown = [item.trial for item in on.alternatives]
    assert {this.trial, on.top} <= set(shown)
    assert len(set(shown)) == len(shown)
    top = given[on.top][0]
    cheap = cost_goal(objective)
    costs = [cheap.loss(item.costs[cheap.metric]) for item in on.alternatives]
    assert costs == sorted(costs)
    for item in on.alternatives:
        assert item.near or item.trial == this.trial
        assert not item.near or item.quality >= top - NEAR - 1e-9
        assert item.relative["latency_s"] == pytest.approx(given[item.trial][1] / given[on.top][1])
    assert bool(this.shortfalls) == (not this.keeps)


@given(
    rows,
    objectives,
    st.dictionaries(st.integers(0, 11), st.sampled_from([1, 3, 9])),
    st.sets(st.integers(0, 11), max_size=4),
)
def test_every_reason_is_true(
    given: list[tuple[float, float]], objective: Objective, levels: dict[int, int], failed: set[int]
) -> None:
    servings = {(number, BOARD): surface(latency_s) for number, (_, latency_s) in enumerate(given)}
    trials = [
        trial(
            number,
            {"accuracy": accuracy, **servings[number, BOARD].metrics()},
            levels.get(number, 9),
            Failure(FailureKind.HUNG, "it hung") if number in failed else None,
        )
        for number, (accuracy, _) in enumerate(given)
    ]
    this = present(recommend(trials, objective, servings, [BOARD], ACCURACY))
    for reason in this.reasons:
        _check_reason(reason, this.trial, trials, objective)


def _check_reason(reason: str, chosen: int, trials: list[Trial], objective: Objective) -> None:
    """Check every claim of a sentence against the metrics of the trials."""
    winner = trials[chosen]
    feasible = [item for item in trials if objective.violation(item.metrics) == 0]
    sound = [item for item in feasible if item.failure is None]
    if "no trial meets every requirement" in reason:
        assert not feasible
        rivals = [item for item in trials if item.failure is None or ", of those without a failure," not in reason]
        assert all(objective.violation(winner.metrics) <= objective.violation(item.metrics) for item in rivals)
    elif "failed later" in reason:
        assert feasible
        assert not sound
        assert winner.level == max(item.level for item in feasible)
    elif "Pareto front" in reason:
        members = [item for item in sound if item.level == winner.level]
        assert winner in members
        assert not any(dominates(objective.losses(item.metrics), objective.losses(winner.metrics)) for item in members)
        for goal in objective.goals:
            best = min(goal.loss(item.metrics[goal.metric]) for item in members)
            assert (str(goal) in reason) == (goal.loss(winner.metrics[goal.metric]) == best)
    elif "is the only one" in reason:
        assert [item for item in sound if item.level == winner.level] == [winner]
        assert ("without a failure" in reason) == (sound != feasible)
    elif " of the " in reason and reason.startswith(f"trial {chosen} "):
        (goal,) = objective.goals
        members = [item for item in sound if item.level == winner.level]
        assert f"the {goal} of the {len(members)} t" in reason
        best = min(goal.loss(item.metrics[goal.metric]) for item in members)
        assert goal.loss(winner.metrics[goal.metric]) == best
    else:
        _check_comparison(reason, winner, trials, cost_goal(objective))


def _check_comparison(reason: str, winner: Trial, trials: list[Trial], cost: Goal) -> None:
    numbers = [int(number) for number in re.findall(r"trial (\d+)", reason)]
    assert len(numbers) == 1
    other = trials[numbers[0]]
    better_by = other.metrics["accuracy"] - winner.metrics["accuracy"]
    if " the highest accuracy" in reason and "of the trials compared" not in reason:
        assert other.metrics["accuracy"] == max(item.metrics["accuracy"] for item in trials)
    cheaper, dearer = (winner, other) if reason.startswith("compared with") else (other, winner)
    if "as good" in reason or reason.startswith("compared with"):
        assert cost.loss(cheaper.metrics[cost.metric]) < cost.loss(dearer.metrics[cost.metric])
    if "nearly as good" in reason:
        assert -NEAR - 1e-9 <= better_by < 0
    elif "at least as good" in reason:
        assert better_by >= 0
    elif "better" in reason:
        assert better_by > 0
    if "points of accuracy" in reason:
        points = float(re.findall(r"([\de.+-]+) points", reason)[0])
        assert abs(better_by) * 100 == pytest.approx(points, rel=0.06)


@given(rows)
def test_front_is_not_dominated(given: list[tuple[float, float]]) -> None:
    (on,) = present(study(*given, objective=Objective("accuracy"))).devices
    losses = {number: (-quality, latency_s) for number, (quality, latency_s) in enumerate(given)}
    beaten = {item for item in losses if any(dominates(losses[other], losses[item]) for other in losses)}
    assert set(on.front) == set(losses) - beaten
    assert list(on.front) == sorted(on.front, key=lambda number: (losses[number][0], number))
