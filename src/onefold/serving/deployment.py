"""The records of deployment.json: the measured serving points and the chosen settings per device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onefold.device import Device
from onefold.serving.point_prediction import interpolate_batch_size
from onefold.serving.scenario_settings import ScenarioSettings
from onefold.serving.scenarios import rename_swapped
from onefold.vocabulary.errors import ModelError, unknown
from onefold.vocabulary.serving import RuntimeResult, Served, ServingPoint, Surface

VERSION = 3  # 1: scenarios server and multi-stream had each other's name; 2: utilization had its British spelling

MAX_BATCH_SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The settings for one device: all known serving points, and the choice for each scenario."""

    device: Device
    surface: Surface
    choices: tuple[ScenarioSettings, ...]
    runtimes: tuple[RuntimeResult, ...] = ()  # that were compared, if several were

    def choice(self, scenario: str) -> ScenarioSettings:
        """Return the settings for a scenario. Raises ModelError if there are none."""
        for choice in self.choices:
            if choice.scenario == scenario:
                return choice
        known = [choice.scenario for choice in self.choices]
        raise ModelError(unknown("scenario", scenario, known, of="the deployment"))

    def expected(self, point: ServingPoint) -> Served:
        """Return the expected cost of a point, interpolated between measured batch sizes.

        Raises ModelError if it was not measured.
        """
        served = interpolate_batch_size(self.surface.served, point)
        if served is None:
            raise ModelError(f"no measurement on {self.device.name} at {point}; measure the model again")
        return served


@dataclass(frozen=True, slots=True)
class Deployment:
    """The content of a deployment folder."""

    host: Device  # the machine that measured
    devices: tuple[DeviceSettings, ...]
    runtime: str
    model: Mapping[str, Any] = field(default_factory=dict)  # origin: study, trial, config, metrics
    version: int = VERSION

    def check(self) -> None:
        """Raise ValueError if no model can be served with these settings: the file may come from elsewhere."""
        if not self.devices:
            raise ValueError("it names no device")
        for settings in self.devices:
            if not settings.choices:
                raise ValueError(f"it has no scenario for {settings.device.name}")
            for point in (*(choice.point for choice in settings.choices), *(s.point for s in settings.surface.served)):
                if not 1 <= point.batch_size <= MAX_BATCH_SIZE:
                    raise ValueError(f"a batch has 1 to {MAX_BATCH_SIZE:,} samples, not {point.batch_size}")

    def on(self, device: str | None = None) -> DeviceSettings:
        """Return the settings for a device, by default the first one. Raises ModelError for an unknown device."""
        if device is None:
            return self.devices[0]
        for settings in self.devices:
            if settings.device.name == device:
                return settings
        known = [settings.device.name for settings in self.devices]
        raise ModelError(unknown("device", device, known, of="the deployment"))


def upgrade(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a deployment.json of any version in the present one. Raises ModelError for a later one."""
    version = content.get("version", 1)
    if version > VERSION:
        raise ModelError(
            f"it was written by a newer Onefold (format {version}, while this one supports {VERSION}); upgrade onefold"
        )
    if version == VERSION:
        return content
    devices = [
        {**device, "choices": [_upgrade_choice(choice) for choice in device["choices"]]}
        for device in content["devices"]
    ]
    return {**content, "devices": devices, "version": VERSION}


def _upgrade_choice(choice: dict[str, Any]) -> dict[str, Any]:
    renamed = {"scenario": rename_swapped(choice["scenario"]), "why": rename_swapped(choice.get("why", ""))}
    responses = {name: _upgrade_response(choice.get(name)) for name in ("predicted", "batch_one", "confirmed")}
    return {**choice, **renamed, **responses}


def _upgrade_response(response: dict[str, Any] | None) -> dict[str, Any] | None:
    if response is None or "utilisation" not in response:
        return response
    return {**response, "utilization": response["utilisation"]}
