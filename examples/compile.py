"""Compile the kernels of a network for this machine, and serve with the runtime that measured fastest.

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
        found = onefold.compile(network, samples=[images], candidates=16, save=folder)
        for one in found.rounds:
            print(f"round {one.number}: {one.latency_s * 1e6:.1f} µs after {one.tried} candidates")
        print(f"stopped: {found.why_stopped}, after {found.spent.time_s:.0f} s")
        for one in found.runtimes:
            print(f"{one.name:17} {one.latency_s * 1e6:7.1f} µs  {one.note}")

        model = onefold.deploy.load(folder)
        print(f"served {len(model(images))} images with {found.recommended}")


if __name__ == "__main__":
    main()
