"""Tune for a device, save the deployment folder, and serve from it.

python examples/deploy.py
"""

import tempfile
from pathlib import Path

import onefold
from onefold import Objective, tune


def main() -> None:
    best = tune(
        "digits",
        trials=9,
        max_epochs=4,
        device=["host", "raspberry-pi-4"],
        objective=Objective(maximize="accuracy - 0.0144 * log(latency_s)"),  # a point for twice the speed
    )
    print(f"trial {best.best.number}: accuracy {best.metrics['accuracy']:.3f}")
    for device, surface in best.surfaces.items():
        for name, value in surface.metrics().items():
            print(f"  {device:15} {name:22} {value:.4g}")

    with tempfile.TemporaryDirectory() as folder:
        best.save(Path(folder))
        model = onefold.deploy.load(folder, device="host", scenario="offline")
        images = onefold.datasets.digits().test[0]
        print(f"served {len(model(images))} images at {model.point}")


if __name__ == "__main__":
    main()
