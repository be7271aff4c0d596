"""From JSON bytes that somebody else wrote to the frozen nouns of this project.

An object in a store may hold anything: another version's fields, a number where text belongs, a
thousand brackets, the bytes of another object. `decode_object` gives a dataclass whose every
field is of its declared type, or one line that names the key and the field. It is the one way from
stored JSON to a dataclass.
"""

import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from collector.errors import BadInput

T = TypeVar("T")
_Decoder = Callable[[object, str], Any]
_LONGEST_QUOTE = 60
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_GREATEST = 1 << 1023  # a whole number below it is a float's, too


def json_value(data: bytes, *, what: str, key: str) -> Any:
    """The value of JSON bytes. Raises BadInput, naming the key, for anything else."""
    try:
        text = data.decode()  # json itself would take half of a surrogate pair, and UTF-16
        value = json.loads(text)
        if _HALF_A_PAIR.search(text):  # an escape can spell one
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{what} is wanted; this holds half of a surrogate pair, which is no text", path=key
        ) from error
    except RecursionError as error:
        raise BadInput(f"{what} is wanted; this is nested too deeply", path=key) from error
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise BadInput(f"{what} is wanted, and this is no JSON: {error}", path=key) from error


def json_object(data: bytes, *, what: str, key: str) -> dict[str, Any]:
    """The members of a JSON object. Raises BadInput, naming the key, for anything else."""
    value = json_value(data, what=what, key=key)
    if not isinstance(value, dict):
        raise BadInput(
            f"{what} is wanted; a JSON object was expected, {_quote(value)} came", path=key
        )
    return value


def decode_object(cls: type[T], data: bytes, *, what: str, key: str) -> T:
    """The dataclass that JSON bytes spell. Raises BadInput, naming the key and the field."""
    return decode_value(cls, json_value(data, what=what, key=key), what=what, key=key)


def decode_value(cls: type[T], value: object, *, what: str, key: str) -> T:
    """The same from a value that was read already."""
    wanted: Any = cls
    try:
        found: T = _decoder(wanted)(value, "")
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} is wanted: {error}", path=key) from error
    return found


@cache
def _decoder(wanted: Any) -> _Decoder:
    """What turns a JSON value into a type, and raises ValueError, with the place, where it cannot.
    Text, numbers, booleans, words of a StrEnum, dataclasses, tuples, mappings by text and unions
    with None are known; a class may spell itself otherwise by `from_json`."""
    if wanted in (Any, object):
        return lambda value, place: value
    if wanted in _SCALARS:
        return _scalar(wanted)
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        return _word(wanted)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments[1])
    if hasattr(wanted, "from_json"):
        return _spelled_by_itself(wanted)
    if is_dataclass(wanted):
        return _dataclass(wanted)
    raise TypeError(f"{wanted!r} is no type that JSON is decoded to")


_SCALARS: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "a boolean",
}


def _scalar(wanted: type) -> _Decoder:
    def decode(value: object, place: str) -> object:
        if type(value) is wanted and (wanted is not float or isfinite(value)):  # type: ignore[arg-type]
            return value
        if wanted is float and type(value) is int and abs(value) < _GREATEST:
            return value  # as it was spelled: what is written again has the same bytes
        raise _wrong(_SCALARS[wanted], value, place)

    return decode


def _word(wanted: type[StrEnum]) -> _Decoder:
    """One word of a closed set."""

    def decode(value: object, place: str) -> object:
        if isinstance(value, str) and value in set(wanted):
            return wanted(value)
        raise _wrong(" or ".join(wanted), value, place)

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


def _spelled_by_itself(wanted: Any) -> _Decoder:
    def decode(value: object, place: str) -> object:
        members = _members(value, place)
        try:
            return wanted.from_json(members)
        except (AttributeError, KeyError, TypeError, BadInput) as error:
            raise ValueError(f"{place}: {error}") from error

    return decode


def _dataclass(wanted: Any) -> _Decoder:
    hints = get_type_hints(wanted)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(wanted)}
    needed = {
        field.name
        for field in fields(wanted)
        if field.default is MISSING and field.default_factory is MISSING
    }

    def decode(value: object, place: str) -> object:
        members = _members(value, place)
        if missing := needed - members.keys():
            raise ValueError(f"{_within(place, min(missing))} is missing")
        if unknown := members.keys() - decoders.keys():
            raise ValueError(f"{_within(place, _quote(min(unknown)))} is not known")
        return wanted(
            **{name: decoders[name](item, _within(place, name)) for name, item in members.items()}
        )

    return decode


def _within(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _wrong(wanted: str, came: object, place: str) -> ValueError:
    return ValueError(f"{place or 'here'} must be {wanted}, {_quote(came)} came")


def _quote(value: object) -> str:
    """A value in few words: what somebody else wrote may be long, or a way to steer a terminal."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
