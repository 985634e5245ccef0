"""Compile the kernels of a network for this machine, and serve it with the fastest runtime.

python examples/compile.py        (pip install 'onefold[kernels]')
"""

import tempfile

import torch
from torch import nn

import onefold


def main() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10)).eval()
    images = onefold.datasets.digits().test[0]

    with tempfile.TemporaryDirectory() as folder:
        budget = onefold.CompileBudget(candidates=16)
        result = onefold.compile(network, samples=[images], budget=budget, save=folder)
        for tuned in result.rounds:
            print(f"round {tuned.number}: {tuned.latency_s * 1e6:.1f} µs after {tuned.tried} candidates")
        print(f"stopped: {result.why_stopped}, after {result.spent.time_s:.0f} s")
        for runtime in result.runtimes:
            print(f"{runtime.name:17} {runtime.latency_s * 1e6:7.1f} µs  {runtime.note}")

        model = onefold.deploy.load(folder)
        print(f"served {len(model(images))} images with {result.recommended}")


if __name__ == "__main__":
    main()
