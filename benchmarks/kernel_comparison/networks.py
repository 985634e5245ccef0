"""The networks that are tuned, and the folders of a run."""

from __future__ import annotations

import shutil
import tempfile
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from onefold.device.host import host
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.source_models import load_models
from onefold.kernels.targets import Target, target_of
from onefold.serving.export import export
from onefold.workloads.mobilenet import Cifar10Mobilenet
from onefold.workloads.resnet import ResidualBlock

GRAPH_LEVEL = 3
SAMPLES = 8


def small() -> nn.Module:
    """Return a CNN of four convolutions."""

    def block(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU()]

    body = [*block(3, 32, 1), *block(32, 32, 1), *block(32, 64, 2), *block(64, 64, 1)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mobilenet() -> nn.Module:
    """Return the default network of the bundled MobileNet workload."""
    workload = Cifar10Mobilenet()
    return workload.build(workload.space.default())


def resnet18() -> nn.Module:
    """Return a network with the layers of ResNet-18 and half its channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for filters, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        layers.append(ResidualBlock(channels, filters, stride))
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


NETWORKS = {"small": small, "mobilenet": mobilenet, "resnet18": resnet18}


class Workspace:
    """The networks as ONNX files, with a separate home, deployment folder and folder of libraries for each run."""

    def __init__(self, folder: Path, networks: list[str]) -> None:
        self.folder, self.networks = folder, networks
        torch.manual_seed(0)
        self.modules = {name: NETWORKS[name]().eval() for name in networks}
        self.samples = torch.randn(SAMPLES, 3, 32, 32)
        for name, network in self.modules.items():
            if not self.model(name).is_file():
                export(network, [self.samples], self.model(name))

    def target(self, threads: int = 1) -> Target:
        """Return this machine, with so many threads."""
        return target_of(host(self.folder / "devices"), threads, is_host=True)

    def model(self, network: str) -> Path:
        """Return the ONNX file of a network."""
        return self.folder / f"{network}.onnx"

    def home(self, run: str) -> Path:
        """Return the home of a run."""
        return self.folder / "homes" / run

    def deployment(self, run: str) -> Path:
        """Return the deployment folder of a run."""
        return self.folder / "deployed" / run

    def libraries(self, run: str) -> Path:
        """Return the folder of the libraries of all rounds of a run."""
        return self.folder / "libraries" / run

    def start(self, run: str) -> Path:
        """Remove what an interrupted run left behind; return a new home with the calibration of this machine."""
        home = self.home(run)
        for folder in (home, self.deployment(run), self.libraries(run)):
            shutil.rmtree(folder, ignore_errors=True)
        home.mkdir(parents=True)
        self.libraries(run).mkdir(parents=True)
        (self.folder / "devices").mkdir(exist_ok=True)
        (home / "devices").symlink_to(self.folder / "devices")
        return home

    def compiler(self, network: str, runner: CandidateRunner) -> ModelCompiler:
        """Return a compiler of a network, which also times its libraries through the call that serves."""
        folder = Path(tempfile.mkdtemp(dir=self.temporary))
        source = load_models([self.model(network)], None, folder, None)[0]
        return ModelCompiler(network, source.file, source.inputs, source.outputs, runner, GRAPH_LEVEL)

    def operator_count(self, network: str) -> int:
        """Return the number of distinct operators of a network."""
        with CandidateRunner(self.target()) as runner:
            return len(self.compiler(network, runner).operators)

    @cached_property
    def temporary(self) -> Path:
        """A folder for files that need not outlive the process."""
        folder = self.folder / "temporary"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder
