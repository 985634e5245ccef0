"""Records of the statistics survive JSON, and importing them loads no heavy dependency."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from onefold import impact_analysis
from onefold.vocabulary.records import from_json, to_json

RECORDS = [
    impact_analysis.best_difference([1.0, 2.0], [3.0], higher_is_better=True),
    impact_analysis.compare_samples([1.0, 2.0, 2.0], [2.0, 3.0]),
    impact_analysis.compare_samples([1.0], []),
    impact_analysis.pairwise_differences([1.0, 2.0, 3.0], [2.0, 2.0, 1.0]),
    impact_analysis.correlations({"a": [1.0, 2.0, 4.0], "b": [1.0, 1.0, 1.0]}),
    impact_analysis.bootstrap_interval(lambda rows: np.mean(rows, axis=-1), [1.0, 2.0], resamples=10),
    impact_analysis.importance([{"a": i, "b": i % 2} for i in range(8)], [float(i) for i in range(8)], trees=3),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_survive_json(record: Any) -> None:
    assert from_json(type(record), json.loads(json.dumps(to_json(record)))) == record


def test_importing_needs_neither_scipy_nor_scikit_learn() -> None:
    code = "import sys, onefold.impact_analysis; print([m for m in ('torch', 'scipy', 'sklearn') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_all_exports_exist() -> None:
    assert len(set(impact_analysis.__all__)) == len(impact_analysis.__all__)
    for name in impact_analysis.__all__:
        assert getattr(impact_analysis, name) is not None
