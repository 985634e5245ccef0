"""Devices by name: those that ship with Onefold and those that users add, in TOML files with one table per device.

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
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from onefold.device.device import Device
from onefold.vocabulary.documents import parse_toml, read_document
from onefold.vocabulary.errors import DeviceError, unknown

HOST = "host"
MAX_FILE_BYTES = 1_000_000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_FIELDS = {field.name: field for field in fields(Device) if field.name != "name"}
_INTEGERS = {"cores", "memory_bytes"}
_STRINGS = {"title", "architecture", "source", "note", "agent", "runtime"}
_MAY_BE_ZERO = {"idle_w", "busy_w", "overhead_us", "call_us", "spread"}
_TABLES = {"operator_rates", "thread_speed"}  # inline tables of numbers, such as {matmul = 160.5, relu = 70.0}
LIKE = "like"  # names the device that a table takes its other figures from


def devices(folder: Path | None = None) -> dict[str, Device]:
    """Return all devices by name: the catalog, overridden by the devices in the *.toml files of `folder`.

    `host` is not among them: `onefold.device.host` describes this machine and caches its calibration in `folder`.
    """
    by_name = {device.name: device for device in _catalog_devices()}
    for path in sorted(folder.glob("*.toml")) if folder else []:
        if path.stem != HOST:
            by_name |= {device.name: device for device in read_devices(path)}
    return by_name


def device(name: str, folder: Path | None = None) -> Device:
    """Return the device of this name. Raises DeviceError, which suggests the closest name."""
    known = devices(folder)
    if name not in known:
        raise DeviceError(unknown("device", name, [*known, HOST]))
    return known[name]


def read_devices(path: Path) -> list[Device]:
    """Return the devices of a TOML file; `source` defaults to `user`.

    Raises DeviceError, which names the file, the device and the missing, invalid or unknown field.
    """
    try:
        text = read_document(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise DeviceError(f"the device file {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    parsed = parse_devices(text, str(path), source="user")
    if path.name != f"{HOST}.toml" and any(device.name == HOST for device in parsed):
        raise DeviceError(f"{path}: the name {HOST!r} is reserved for this machine; choose another")
    return parsed


def parse_devices(text: str, where: str, source: str) -> list[Device]:
    """Return the devices of a TOML text; error messages call it `where`, and `source` is the default of that field."""
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise DeviceError(f"{where} is not valid TOML: {error}") from error
    if not tables:
        raise DeviceError(f"{where} defines no device; add a table such as [my-board]")
    parsed: dict[str, Device] = {}
    for name, table in tables.items():
        parsed[name] = _device(name, table, where, source, parsed)
    return list(parsed.values())


def save_device(device: Device, folder: Path) -> Path:
    """Write the device to NAME.toml in `folder`, which is created if needed, and return the path."""
    check_name(device.name, "device")
    lines = [f"[{device.name}]"]
    for name in _FIELDS:
        value = getattr(device, name)
        if name in _TABLES and value:
            lines.append(f"{name} = {{{', '.join(f'{json.dumps(str(key))} = {each}' for key, each in value)}}}")
        elif value is not None and value != () and not (value == "" and _FIELDS[name].default == ""):
            # JSON strings and numbers are valid TOML, except for DEL, which JSON does not escape.
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False).replace(chr(127), '')}")
    path = folder / f"{device.name}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"device {device.name!r} cannot be written to {path}: {error.strerror}") from error
    return path


def remove_device(name: str, folder: Path) -> bool:
    """Remove the device of NAME.toml in `folder`; return whether there was one that stands alone in its file."""
    path = folder / f"{name}.toml"
    if name == HOST or not path.is_file() or len(read_devices(path)) > 1:
        return False
    path.unlink()
    return True


def check_name(name: str, where: str) -> None:
    """Raise DeviceError unless this is a valid device name; the message starts with `where`."""
    if not _NAME.fullmatch(name):
        raise DeviceError(f"{where}: a name has lowercase letters, digits and '-' only, got {name!r}")


def _catalog_devices() -> list[Device]:
    text = files("onefold.device").joinpath("catalog.toml").read_text(encoding="utf-8")
    return parse_devices(text, "catalog.toml", source="catalog")


def _device(name: str, table: object, where: str, source: str, above: Mapping[str, Device]) -> Device:
    """Return the device of a table; `above` are those that the file defines before it."""
    check_name(name, where)
    if not isinstance(table, Mapping):
        raise DeviceError(f"{where}: {name!r} is outside a table; give each device a table such as [my-board]")
    owner = f"{where}: device {name!r}"
    for field in table:
        if field not in _FIELDS and field != LIKE:
            raise DeviceError(f"{owner}: {unknown('field', field, [*_FIELDS, LIKE])}")
    if LIKE in table:
        return _derived(name, table, owner, source, above)
    missing = [field.name for field in _FIELDS.values() if field.default is MISSING and field.name not in table]
    if missing:
        raise DeviceError(f"{owner} lacks the required fields: {', '.join(missing)}")
    values = {field: _value(field, value, owner) for field, value in table.items()}
    return _checked(Device(name=name, **({"source": source} | values)), owner)


def _derived(name: str, table: Mapping[str, object], owner: str, source: str, above: Mapping[str, Device]) -> Device:
    """Return the device that `like` names with the figures of the table; another frequency changes those not given."""
    known = {**{device.name: device for device in _catalog_devices()}, **above}
    if table[LIKE] not in known:
        raise DeviceError(f"{owner}: {unknown('device', str(table[LIKE]), known)}")
    values = {field: _value(field, value, owner) for field, value in table.items() if field != LIKE}
    model = known[str(table[LIKE])]
    if "frequency_ghz" in values:
        model = model.at_frequency(values["frequency_ghz"])
    note = f"like {table[LIKE]} at {model.frequency_ghz:g} GHz: {model.note}" if model.frequency_ghz else model.note
    return _checked(replace(model, **({"name": name, "source": source, "note": note} | values)), owner)


def _checked(parsed: Device, owner: str) -> Device:
    if parsed.busy_w < parsed.idle_w:
        raise DeviceError(f"{owner}: busy_w must be at least idle_w, but {parsed.busy_w:g} is below {parsed.idle_w:g}")
    return parsed


def _value(field: str, value: object, owner: str) -> Any:
    """Return the value in the type of the field. Raises DeviceError if it does not fit."""
    if field in _STRINGS:
        if isinstance(value, str):
            return value
        raise DeviceError(f"{owner}: {field} must be a string in quotes, got {value!r}")
    if field in _INTEGERS:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise DeviceError(f"{owner}: {field} must be an integer of at least 1, got {value!r}")
    if field in _TABLES:
        return _numbers(field, value, owner)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (value == 0 and field not in _MAY_BE_ZERO):  # type: ignore[operator]
        bound = "of at least 0" if field in _MAY_BE_ZERO else "above 0"
        raise DeviceError(f"{owner}: {field} must be a number {bound}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def _numbers(field: str, value: object, owner: str) -> tuple[tuple[Any, float], ...]:
    if not isinstance(value, Mapping):
        raise DeviceError(f"{owner}: {field} must be a table of numbers, such as {{matmul = 160.5}}, got {value!r}")
    pairs = []
    for key, number in value.items():
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
        if not is_number or number <= 0 or (field == "thread_speed" and not str(key).isdigit()):
            raise DeviceError(f"{owner}: {field} must have numbers above 0, got {key} = {number!r}")
        pairs.append((int(key) if field == "thread_speed" else str(key), float(number)))
    return tuple(sorted(pairs)) if field == "thread_speed" else tuple(pairs)
