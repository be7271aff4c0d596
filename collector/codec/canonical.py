"""Canonical JSON, and decoding of JSON into the frozen dataclasses of this project."""

import hashlib
import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from collector.codec.errors import BadInput
from collector.codec.files import refuse_pointer

# One byte form for a value, so that equal values have equal hashes wherever they are computed.

# Created once: json.dumps would create one per call, and 100,000s of identities are computed.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical_json(value: object) -> bytes:
    """Return JSON with sorted keys, no blanks, UTF-8, and no NaN: the form that is hashed."""
    return _CANONICAL.encode(value).encode()


def readable_json(value: object) -> bytes:
    """Return readable JSON: sorted keys, indented, one final newline."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def short_hash(value: object, length: int = 20) -> str:
    """Return the first `length` hex digits of the hash of a value's canonical form."""
    return sha256_hex(canonical_json(value))[:length]


# Decode JSON that another process wrote into the frozen dataclasses of this project.
#
# An object in a store may contain anything: the fields of another version, a number in place of a
# text, a thousand brackets, the bytes of another object. `decode_object` returns a dataclass with
# every field of its declared type, or raises an error of one line, `<key>: expected <what>:
# <field>: expected X, got Y`. Stored JSON becomes a dataclass only here.

T = TypeVar("T")
_Decoder = Callable[[object, str], Any]
_LONGEST_QUOTE = 60
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_GREATEST = 1 << 1023  # an integer below it is also a float


def json_value(data: bytes, *, what: str, key: str, has_unique_names: bool = False) -> Any:
    """Return the value of JSON bytes. Raises BadInput, naming the key, for anything else, and with
    `has_unique_names` for an object with two members of one name."""
    refuse_pointer(data, key)
    try:
        text = data.decode()  # json itself would accept an unpaired surrogate, and UTF-16
        value = json.loads(text, object_pairs_hook=_unique if has_unique_names else None)
        if _HALF_A_PAIR.search(text):  # an escape can encode one
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise BadInput(
            f"expected {what}, got JSON with an unpaired surrogate, which is not valid text",
            path=key,
        ) from error
    except RecursionError as error:
        raise BadInput(f"expected {what}, got JSON that is nested too deeply", path=key) from error
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise BadInput(f"expected {what}, got invalid JSON: {error}", path=key) from error


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) < len(members):
        names = [name for name, _ in members]
        raise ValueError(f"two members {next(name for name in names if names.count(name) > 1)!r}")
    return value


def json_object(
    data: bytes, *, what: str, key: str, has_unique_names: bool = False
) -> dict[str, Any]:
    """Return the members of a JSON object. Raises BadInput as `json_value` does."""
    value = json_value(data, what=what, key=key, has_unique_names=has_unique_names)
    if not isinstance(value, dict):
        raise BadInput(f"expected {what}, a JSON object, got {_quote(value)}", path=key)
    return value


def decode_object(cls: type[T], data: bytes, *, what: str, key: str) -> T:
    """Return the dataclass of JSON bytes. Raises BadInput, naming the key and the field."""
    return decode_value(cls, json_value(data, what=what, key=key), what=what, key=key)


def decode_value(cls: type[T], value: object, *, what: str, key: str) -> T:
    """Return the dataclass of a value that `json_value` returned."""
    declared: Any = cls
    try:
        found: T = _decoder(declared)(value, "")
    except (ValueError, RecursionError) as error:
        raise BadInput(f"expected {what}: {error}", path=key) from error
    return found


@cache
def _decoder(declared: Any) -> _Decoder:
    """Return a function that converts a JSON value to a type.

    The function raises ValueError, with the field, if it cannot. It supports text, numbers,
    booleans, members of a StrEnum, dataclasses, tuples, mappings by text and unions with None; a
    class may define its own form with `from_json`."""
    if declared in (Any, object):
        return lambda value, place: value
    if declared in _SCALARS:
        return _scalar(declared)
    if isinstance(declared, type) and issubclass(declared, StrEnum):
        return _word(declared)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments[1])
    if hasattr(declared, "from_json"):
        return _spelled_by_itself(declared)
    if is_dataclass(declared):
        return _dataclass(declared)
    raise TypeError(f"expected a type that JSON can be decoded to, got {declared!r}")


_SCALARS: Mapping[Any, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
}


def _scalar(declared: type) -> _Decoder:
    def decode(value: object, place: str) -> object:
        if type(value) is declared and (declared is not float or isfinite(value)):  # type: ignore[arg-type]
            return value
        if declared is float and type(value) is int and abs(value) < _GREATEST:
            return value  # unchanged, so that it is written with the same bytes
        raise _wrong(_SCALARS[declared], value, place)

    return decode


def _word(declared: type[StrEnum]) -> _Decoder:
    def decode(value: object, place: str) -> object:
        if isinstance(value, str) and value in set(declared):
            return declared(value)
        raise _wrong(" or ".join(declared), value, place)

    return decode


def _optional(arguments: tuple[Any, ...]) -> _Decoder:
    (inner,) = (_decoder(argument) for argument in arguments if argument is not types.NoneType)
    return lambda value, place: None if value is None else inner(value, place)


def _tuple(arguments: tuple[Any, ...]) -> _Decoder:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        inner = _decoder(arguments[0])
        return lambda value, place: tuple(
            inner(item, f"{place}[{at}]") for at, item in enumerate(_list(value, place))
        )
    inners = [_decoder(argument) for argument in arguments]

    def decode(value: object, place: str) -> object:
        items = _list(value, place)
        if len(items) != len(inners):
            raise _wrong(f"a list of {len(inners)}", value, place)
        pairs = zip(inners, items, strict=True)
        return tuple(inner(item, f"{place}[{at}]") for at, (inner, item) in enumerate(pairs))

    return decode


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise _wrong("a list", value, place)
    return value


def _mapping(argument: Any) -> _Decoder:
    inner = _decoder(argument)
    return lambda value, place: {
        name: inner(item, _within(place, name)) for name, item in _members(value, place).items()
    }


def _members(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong("an object", value, place)
    return value


def _spelled_by_itself(declared: Any) -> _Decoder:
    def decode(value: object, place: str) -> object:
        members = _members(value, place)
        try:
            return declared.from_json(members)
        except (AttributeError, KeyError, TypeError, BadInput) as error:
            raise ValueError(f"{place}: {error}" if place else str(error)) from error

    return decode


def _dataclass(declared: Any) -> _Decoder:
    hints = get_type_hints(declared)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(declared)}
    needed = {
        field.name
        for field in fields(declared)
        if field.default is MISSING and field.default_factory is MISSING
    }

    def decode(value: object, place: str) -> object:
        members = _members(value, place)
        if missing := needed - members.keys():
            raise ValueError(f"{_within(place, min(missing))}: missing field")
        if unknown := members.keys() - decoders.keys():
            raise ValueError(f"{_within(place, _quote(min(unknown)))}: unknown field")
        return declared(
            **{name: decoders[name](item, _within(place, name)) for name, item in members.items()}
        )

    return decode


def _within(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _wrong(expected: str, got: object, place: str) -> ValueError:
    return ValueError(f"{place or 'top level'}: expected {expected}, got {_quote(got)}")


def _quote(value: object) -> str:
    """Return a short description of a value, without control characters for a terminal."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
