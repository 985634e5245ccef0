"""The search for alpha: it finds the best region, in few trials and without importing a library for it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from onefold.retraining.alpha_search import GRID, MICRO_WINDOWS_PER_TRIAL, AlphaSearch, expected_improvement, predict


@pytest.mark.parametrize("best", [0.0, 0.3, 0.75, 1.0])
def test_the_search_settles_near_the_best_alpha(best: float) -> None:
    search, alphas = AlphaSearch(), []
    for _ in range(20 * MICRO_WINDOWS_PER_TRIAL):
        alphas.append(search.alpha)
        search.tell(1.0 - (search.alpha - best) ** 2)
    assert np.mean(np.abs(np.array(alphas[-30:]) - best)) < 0.2


def test_alpha_stays_for_a_trial() -> None:
    search = AlphaSearch()
    proposed = [search.tell(0.1) for _ in range(2 * MICRO_WINDOWS_PER_TRIAL)]
    assert len(set(proposed[: MICRO_WINDOWS_PER_TRIAL - 1])) == 1
    assert proposed[MICRO_WINDOWS_PER_TRIAL - 1] != proposed[0]


def test_a_prediction_is_certain_where_results_are_known() -> None:
    mean, deviation = predict(np.array([0.2, 0.8]), np.array([1.0, 3.0]), GRID)
    assert mean[32] > 0.5 > -0.5 > mean[8]
    assert deviation[8] < deviation[20] > deviation[32]
    assert np.argmax(expected_improvement(mean, deviation, mean.max())) >= 24


def test_equal_results_are_no_error() -> None:
    search = AlphaSearch()
    assert all(0 <= search.tell(0.0) <= 1 for _ in range(30))


def test_the_search_imports_no_library() -> None:
    program = (
        "import sys; from onefold.retraining.alpha_search import AlphaSearch; search = AlphaSearch();"
        "[search.tell(1.0) for _ in range(20)]; print({'optuna', 'scipy', 'sklearn', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "set()", done.stderr
