"""Onefold tunes a neural network for the device it will be served on.

A study reads from left to right, and so does this package:

    vocabulary                      spaces, objectives, workloads and the records that all packages share
    datasets, workloads             real data, and bundled workloads over it
    search                          space + results -> the next configuration and its rung
    training                        workload + configuration -> a trained model, epoch by epoch
    serving, device                 model + device -> serving points and what they cost; deployment
    compression                     trained model -> smaller and faster variants
    kernels                         model + device -> compiled kernels
    retraining                      deployed model + new data + limits -> a better model
    study                           the composition: durable, parallel, resumable
    impact_analysis                 many models -> what tuning and compression change
    report                          text, JSON and HTML
    model_folder                    the files of a model: replaced as a whole, checked, trusted or not
    engine, processes, meter, store where calls run, what they cost, what is remembered
    cli                             the same from a shell
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from onefold import datasets
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import OnefoldError, Rejected
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config
from onefold.vocabulary.requirement import at_least, at_most
from onefold.vocabulary.space import Choice, Float, Int, Space
from onefold.vocabulary.workload import Data, Workload

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime reads it when it is imported

if TYPE_CHECKING:
    from onefold.baselines.tuning_comparison import compare
    from onefold.compression.api import CompressOptions, compress
    from onefold.impact_analysis.api import ImpactOptions, impact
    from onefold.kernels.api import compile, compile_many
    from onefold.retraining.api import retrain
    from onefold.retraining.control import RetrainingControl
    from onefold.retraining.options import RetrainingOptions
    from onefold.search import Search
    from onefold.serving import deploy
    from onefold.serving.api import measure, serve_check
    from onefold.serving.options import ServingOptions
    from onefold.serving.space import ServingSpace
    from onefold.study import ParallelismOptions, SearchOptions, Study
    from onefold.study.api import train, tune
    from onefold.vocabulary.forks import ForkOptions
    from onefold.vocabulary.kernels import CompileBudget, CompileOptions
    from onefold.vocabulary.knobs import KnobOptions
    from onefold.vocabulary.preference import Preference
    from onefold.vocabulary.variants import Recipe

__version__ = "0.2.0"

# Imported on first use: `import onefold` needs neither torch nor a database.
_LAZY = {
    "CompileBudget": "onefold.vocabulary.kernels",
    "CompileOptions": "onefold.vocabulary.kernels",
    "CompressOptions": "onefold.compression.api",
    "ForkOptions": "onefold.vocabulary.forks",
    "ImpactOptions": "onefold.impact_analysis.api",
    "KnobOptions": "onefold.vocabulary.knobs",
    "ParallelismOptions": "onefold.study.options",
    "Preference": "onefold.vocabulary.preference",
    "Recipe": "onefold.vocabulary.variants",
    "RetrainingControl": "onefold.retraining.control",
    "RetrainingOptions": "onefold.retraining.options",
    "Search": "onefold.search",
    "SearchOptions": "onefold.study.options",
    "SelectionOptions": "onefold.compression.selection",
    "ServingOptions": "onefold.serving.options",
    "ServingSpace": "onefold.serving.space",
    "Study": "onefold.study",
    "compare": "onefold.baselines.tuning_comparison",
    "compile": "onefold.kernels.api",
    "compile_many": "onefold.kernels.api",
    "compress": "onefold.compression.api",
    "deploy": "onefold.serving.deploy",
    "impact": "onefold.impact_analysis.api",
    "measure": "onefold.serving.api",
    "retrain": "onefold.retraining.api",
    "serve_check": "onefold.serving.api",
    "train": "onefold.study.api",
    "tune": "onefold.study.api",
}

__all__ = [
    "Budget",
    "Choice",
    "CompileBudget",
    "CompileOptions",
    "CompressOptions",
    "Config",
    "Data",
    "Float",
    "ForkOptions",
    "ImpactOptions",
    "Int",
    "KnobOptions",
    "Objective",
    "OnefoldError",
    "ParallelismOptions",
    "Preference",
    "Recipe",
    "Rejected",
    "RetrainingControl",
    "RetrainingOptions",
    "Search",
    "SearchOptions",
    "SelectionOptions",
    "ServingOptions",
    "ServingSpace",
    "Space",
    "Study",
    "Workload",
    "at_least",
    "at_most",
    "compare",
    "compile",
    "compile_many",
    "compress",
    "datasets",
    "deploy",
    "impact",
    "measure",
    "retrain",
    "serve_check",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'onefold' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    if name == "deploy":
        return importlib.import_module("onefold.serving.deploy")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
