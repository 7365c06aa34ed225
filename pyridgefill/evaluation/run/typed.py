"""Dataclasses as JSON, back, and as a JSON schema."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A value of dataclasses, dicts and tuples as JSON has it; fields that are None by default are left out then."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {
            name: to_json(item) for name, (item, default) in found.items() if item is not None or default is not None
        }
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(kind: type[T], value: Any) -> T:
    """The value of a type that `to_json` wrote; numbers that are null are NaN, keys that no field has are left out.

    Raises
    ------
    TypeError, KeyError, ValueError
        If a field is missing or the value has another form.
    """
    return typing.cast(T, _read(kind, value))


def _read(kind: Any, value: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _read(args[0], value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _read(hint, value[name]) for name, hint in hints.items() if name in value})  # type: ignore[operator]
    if origin is tuple:
        return tuple(_read(args[0], item) for item in value)
    if origin is dict:
        return {key: _read(args[1], item) for key, item in value.items()}
    if kind is float:
        return float("nan") if value is None else float(value)
    if kind in (int, str, bool) and not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {value!r}")
    return value


def schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type; those of dataclasses are added to the definitions that it refers to."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema(args[0], definitions), {"type": "null"}]}
    if is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            hints = get_type_hints(kind)
            definitions[name] = {
                "type": "object",
                "required": [field.name for field in fields(kind) if field.default is MISSING],
                "properties": {field.name: schema(hints[field.name], definitions) for field in fields(kind)},
            }
        return {"$ref": f"#/$defs/{name}"}
    if origin is tuple:
        return {"type": "array", "items": schema(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(args[1], definitions)}
    # numbers that were not measured, or are not finite, are null
    return {"type": {int: "integer", float: ["number", "null"], str: "string", bool: "boolean"}[kind]}
