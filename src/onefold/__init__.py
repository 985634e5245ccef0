"""Onefold tunes a neural network for the device it will live on.

A study reads from left to right, and so does this package:

    space, objective, workload      what may vary, what is better, what the user brings
    datasets, workloads             real data, and ready workloads over it
    search                          the space and what was told -> the next configuration and its rung
    training                        a workload and a configuration -> a trained model, epoch by epoch
    device, inference               a model and where it will live -> how to serve it, and what that costs
    compression                     a trained network -> smaller and faster variants of it
    kernels                         a model and a device -> kernels compiled for it
    retraining                      a deployed model and new data -> a better one, within memory and time
    impact                          many models' properties -> what tuning and compression really change
    recommend, deploy               everything measured -> one model with its reasons, in a folder ready to serve
    study                           the composition: durable, parallel, resumable; tune() is one call over it
    report                          what happened, as text, JSON and one HTML page
    engine, meter, store            where calls run, what they cost, what is remembered
    cli                             the same from a shell
"""

from __future__ import annotations

import importlib
from typing import Any

from onefold import datasets
from onefold.vocabulary.errors import OnefoldError, Rejected
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Config
from onefold.vocabulary.requirement import at_least, at_most
from onefold.vocabulary.space import Choice, Float, Int, Space
from onefold.vocabulary.workload import Data, Workload

__version__ = "0.1.0"

# Handed out on first use, so that `import onefold` needs neither torch nor a database.
_LAZY = {
    "Recipe": "onefold.vocabulary.variants",
    "Search": "onefold.search",
    "ServingSpace": "onefold.serving.space",
    "Study": "onefold.study",
    "compile": "onefold.kernels.api",
    "compress": "onefold.compression.api",
    "impact_of": "onefold.impact_analysis.api",
    "measure": "onefold.serving.api",
    "retrain": "onefold.retraining.api",
    "serve_check": "onefold.serving.api",
    "tune": "onefold.study",
}
_LAZY_MODULES = {"deploy": "onefold.serving.deploy"}

__all__ = [
    "Budget",
    "Choice",
    "Config",
    "Data",
    "Float",
    "Int",
    "Objective",
    "OnefoldError",
    "Recipe",
    "Rejected",
    "Search",
    "ServingSpace",
    "Space",
    "Study",
    "Workload",
    "at_least",
    "at_most",
    "compile",
    "compress",
    "datasets",
    "deploy",
    "impact_of",
    "measure",
    "retrain",
    "serve_check",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(_LAZY_MODULES[name])
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'onefold' has no attribute {name!r}")
