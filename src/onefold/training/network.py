"""The network that a workload builds."""

from __future__ import annotations

import torch

from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Workload


def build_network(workload: Workload, config: Config) -> torch.nn.Module:
    """Return the untrained network of a configuration; raise WorkloadError if `build` returns something else."""
    network = workload.build(config)
    if not isinstance(network, torch.nn.Module):
        raise WorkloadError(
            f"build() of {workload.name} must return a torch.nn.Module, but returned {type(network).__name__}"
        )
    return network
