"""Read records from JSON of unknown origin, checking every type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from onefold.vocabulary.records import Config, Value, from_json

Record = TypeVar("Record")
NAMES = {str: "a text", bool: "true or false", int: "an integer", float: "a number", dict: "an object", list: "a list"}


def checked_from_json(kind: type[Record], data: Any, where: str = "") -> Record:
    """Return the record that `data` describes; `where` is its path in the file.

    Raises ValueError, which names the path, the expected type and the actual value.
    """
    _check(kind, data, where)
    return from_json(kind, data)


def _check(kind: Any, data: Any, where: str) -> None:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin in (Union, UnionType):
        _check_union(args, data, where)
    elif origin is Literal:
        if data not in args:
            raise ValueError(f"{where or 'it'} must be one of {', '.join(map(repr, args))}, but is {_short(data)}")
    elif origin is tuple:
        _expect(list, data, where)
        for position, item in enumerate(data):
            _check(args[0] if Ellipsis in args else args[position % len(args)], item, f"{where}[{position}]")
    elif kind is Config or origin is not None:
        _expect(dict, data, where)
        for name, value in data.items():
            _check(Value if kind is Config else args[1], value, f"{where}.{name}".lstrip("."))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        _check(Literal[tuple(member.value for member in kind)], data, where)
    elif is_dataclass(kind):
        _check_record(kind, data, where)
    elif kind in NAMES:
        _expect(kind, data, where)


def _check_record(kind: Any, data: Any, where: str) -> None:
    _expect(dict, data, where)
    hints = get_type_hints(kind)
    for field in fields(kind):
        path = f"{where}.{field.name}".lstrip(".")
        if field.name in data:
            _check(hints[field.name], data[field.name], path)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{path} is missing")


def _check_union(options: tuple[Any, ...], data: Any, where: str) -> None:
    if data is None and NoneType in options:
        return None
    problems = []
    for option in (option for option in options if option is not NoneType):
        try:
            return _check(option, data, where)
        except ValueError as problem:
            problems.append(problem)
    raise problems[0]


def _expect(kind: type, data: Any, where: str) -> None:
    fits = isinstance(data, kind) or (kind is float and isinstance(data, int))
    if not fits or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{where or 'it'} must be {NAMES[kind]}, but is {_short(data)}")
    if kind is float and isinstance(data, int):
        try:
            float(data)
        except OverflowError:
            raise ValueError(f"{where} is too large") from None


def _short(data: Any) -> str:
    names: Mapping[type, str] = {dict: "an object", list: "a list", NoneType: "null"}
    return names.get(type(data)) or repr(data)[:60]
