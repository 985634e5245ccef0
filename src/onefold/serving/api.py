"""How a model that somebody already has is served best, and whether a deployment folder keeps what it promises."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onefold.device import PRECISE, STANDARD, Device, open_session, runtime
from onefold.device.catalogue import HOST
from onefold.device.host import find_device, host
from onefold.serving import deploy
from onefold.serving.external_data import with_embedded_weights
from onefold.serving.options import ServingOptions
from onefold.serving.scenarios import USUAL, is_load, scenario
from onefold.serving.space import ServingSpace
from onefold.serving.tuner import PointSearchOptions, ServingTuner
from onefold.store.home import Home
from onefold.vocabulary.serving import OptimizeFor, Served

Heard = Callable[[Device, Served], None]


def measure(
    model: str | Path,
    device: str | Device | Sequence[str | Device] = HOST,
    *,
    serve_for: str = OptimizeFor.THROUGHPUT.value,
    serving_search: str = "few",
    serving_space: ServingSpace | None = None,
    scenarios: Sequence[str] = USUAL,
    scenario_goal: str = "mean",
    save: str | Path | None = None,
    home: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    listener: Heard = lambda device, served: None,  # noqa: ARG005
) -> deploy.Deployment:
    """The inference tuner alone: how to serve an ONNX model on each device, and what to expect.

    With `save` a deployment folder is made there; `about` says where the model comes from. `listener` hears of each
    measurement.
    """
    options = ServingOptions(serve_for, serving_search, serving_space, tuple(scenarios), scenario_goal)
    options.check()
    place = Home(home)
    given = [device] if isinstance(device, (str, Device)) else list(device)
    targets = [one if isinstance(one, Device) else find_device(one, place.devices) for one in given]
    here = host(place.devices)
    rests = any(is_load(scenario(text)) for text in scenarios)
    found = []
    with tempfile.TemporaryDirectory(prefix="onefold-") as folder:
        file = with_embedded_weights(Path(model), Path(folder))
        for target in targets:
            with open_session(target, here) as session:
                tuner = ServingTuner(session, serving_space, PointSearchOptions(OptimizeFor(serve_for), serving_search))
                tuner.prepare(file)
                with place.locks.measurement():
                    heard = _heard(listener, target)
                    surface = tuner.measure(file, STANDARD, heard, label=PRECISE, rests=rests)
            found.append(deploy.settings(target, surface, file, options.scenarios, scenario_goal, here))
        deployment = deploy.Deployment(here, tuple(found), runtime(), about or {"file": file.name})
        if save is not None:
            deploy.write(Path(save), file, deployment)
    return deployment


def serve_check(
    folder: str | Path, device: str | None = None, *, home: str | Path | None = None
) -> list[deploy.ServeCheck]:
    """Serves a deployed model with its recommended settings and puts measured beside expected."""
    place = Home(home)
    with place.locks.measurement():
        return deploy.check(folder, host(place.devices), device)


def _heard(listener: Heard, device: Device) -> Callable[[Served], None]:
    return lambda served: listener(device, served)
