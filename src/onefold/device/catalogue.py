"""Devices by name: those that ship with Onefold, and those of the user, one TOML file each or several in one.

[my-board]
title = "My board"
cores = 4
gflops = 7.2
…
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from onefold.device.device import Device
from onefold.vocabulary.errors import DeviceError, suggestion

HOST = "host"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_FIELDS = {field.name: field for field in fields(Device) if field.name != "name"}
_COUNTS = {"cores", "memory_bytes"}
_WORDS = {"title", "architecture", "source", "note"}
_MAY_BE_ZERO = {"idle_w", "busy_w", "overhead_us"}


def devices(folder: Path | None = None) -> dict[str, Device]:
    """All devices by name: the catalogue, then those in the *.toml files of `folder`, which win over it.

    `host` is no member: what this machine is comes from `onefold.device.host`, which keeps its own file in `folder`.
    """
    found = {device.name: device for device in _shipped()}
    for path in sorted(folder.glob("*.toml")) if folder else []:
        if path.stem != HOST:
            found |= {device.name: device for device in read_devices(path)}
    return found


def device(name: str, folder: Path | None = None) -> Device:
    """The device of this name; DeviceError with the nearest name when there is none."""
    known = devices(folder)
    if name not in known:
        raise DeviceError(f"there is no device {name!r}{suggestion(name, [*known, HOST])}")
    return known[name]


def read_devices(path: Path) -> list[Device]:
    """The devices of a TOML file, a table for each; their source is `user` where the file says no other.

    DeviceError names the file, the device and the field that is missing, wrong or unknown.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(f"the devices in {path} cannot be read: {error}") from error
    found = parse_devices(text, str(path), source="user")
    for one in found:
        if one.name == HOST and path.name != f"{HOST}.toml":
            raise DeviceError(f"{path}: the name {HOST!r} is reserved for this machine; choose another")
    return found


def parse_devices(text: str, where: str, source: str) -> list[Device]:
    """The devices of a TOML text; `where` is how errors name it, `source` what devices say that do not say it."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeviceError(f"{where} is not TOML: {error}") from error
    if not tables:
        raise DeviceError(f"{where} holds no device; give each a table: [my-board]")
    return [_device(name, table, where, source) for name, table in tables.items()]


def save_device(device: Device, folder: Path) -> Path:
    """Writes the device to NAME.toml in `folder`, which is made if need be, and returns the file's path."""
    check_name(device.name, "a device")
    lines = [f"[{device.name}]"]
    for name in _FIELDS:
        value = getattr(device, name)
        if value is not None:
            # Strings and numbers of JSON are those of TOML, but for the control character that JSON leaves as it is.
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False).replace(chr(127), '')}")
    path = folder / f"{device.name}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"the device {device.name!r} cannot be written to {path}: {error.strerror}") from error
    return path


def check_name(name: str, whose: str) -> None:
    """Raises DeviceError unless a device may be called so; `whose` begins the sentence."""
    if not _NAME.fullmatch(name):
        raise DeviceError(f"{whose}: a name is made of small letters, digits and '-', but got {name!r}")


def _shipped() -> list[Device]:
    text = files("onefold.device").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return parse_devices(text, "catalogue.toml", source="catalogue")


def _device(name: str, table: object, where: str, source: str) -> Device:
    check_name(name, where)
    if not isinstance(table, Mapping):
        raise DeviceError(f"{where}: {name!r} stands outside a table; give each device one: [my-board]")
    whose = f"{where}: device {name!r}"
    for field in table:
        if field not in _FIELDS:
            raise DeviceError(f"{whose} has an unknown field {field!r}{suggestion(field, _FIELDS)}")
    missing = [field.name for field in _FIELDS.values() if field.default is MISSING and field.name not in table]
    if missing:
        raise DeviceError(f"{whose} lacks {', '.join(missing)}; every device needs them")
    values = {field: _value(field, value, whose) for field, value in table.items()}
    found = Device(name=name, **({"source": source} | values))
    if found.busy_w < found.idle_w:
        raise DeviceError(f"{whose}: busy_w must be at least idle_w, but {found.busy_w:g} is below {found.idle_w:g}")
    return found


def _value(field: str, value: object, whose: str) -> Any:
    """The value in the field's kind, or DeviceError."""
    if field in _WORDS:
        if isinstance(value, str):
            return value
        raise DeviceError(f"{whose}: {field} must be a text in quotes, but got {value!r}")
    if field in _COUNTS:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise DeviceError(f"{whose}: {field} must be a whole number of at least 1, but got {value!r}")
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < 0 or (value == 0 and field not in _MAY_BE_ZERO):  # type: ignore[operator]
        least = "of at least 0" if field in _MAY_BE_ZERO else "above 0"
        raise DeviceError(f"{whose}: {field} must be a number {least}, but got {value!r}")
    return float(value)  # type: ignore[arg-type]
