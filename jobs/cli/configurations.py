"""Configurations of a serving engine that serve the same load: all combinations of a sweep."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from collector.codec.errors import BadInput
from collector.codec.numbers import parse_number
from collector.engine.engine_process import EngineSettings, GraphMode

_MOST = 64
_EAGER = "eager"


@dataclass(frozen=True, slots=True)
class Configuration:
    """An engine and how fast requests come: `rate` per second, at most `concurrency` at once.
    `name` has what distinguishes it from others."""

    name: str
    settings: EngineSettings
    rate: float | None = None
    concurrency: int | None = None


def swept(sweep: Sequence[str], one: Configuration) -> tuple[Configuration, ...]:
    """Return all combinations of the values of a sweep, such as `tp=4,8` and `max_num_seqs=16,64`.

    A name is one of the command's options, in capitals a variable of the engine's environment, or
    else an option of vllm.LLM. Raises BadInput for another text, and for too many combinations."""
    axes = [list(_axis(word)) for word in sweep]
    names = [axis[0][0] for axis in axes]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"--sweep: expected each name once, got {repeated[0]} again")
    if (count := prod(map(len, axes))) > _MOST:
        raise BadInput(f"--sweep: expected at most {_MOST} combinations, got {count}")
    return tuple(_with(one, dict(pairs)) for pairs in product(*axes))


def _axis(word: str) -> Iterator[tuple[str, str]]:
    name, _, values = word.lstrip("-").partition("=")
    texts = values.split(",")
    if not (name and all(texts)) or len({*texts}) < len(texts):
        raise BadInput(f"--sweep: expected name=value,value, each value once, got {word!r}")
    return ((name if name.isupper() else name.replace("-", "_"), text) for text in texts)


def _with(one: Configuration, values: Mapping[str, str]) -> Configuration:
    """Return a configuration with other values. Experts that are over all ranks stay so."""
    has_all = 1 < one.settings.ep == one.settings.ranks
    for name, text in values.items():
        try:
            one = _CHANGES.get(name, _engine(name))(one, text)
        except ValueError as error:
            raise BadInput(f"--sweep: {name}: expected {error}, got {text!r}") from error
    if has_all and "ep" not in values:
        one = replace(one, settings=replace(one.settings, ep=one.settings.ranks))
    named = " ".join(f"{name}={text}" for name, text in values.items())
    return replace(one, name=named)


Change = Callable[[Configuration, str], Configuration]


def _setting(name: str, read: Callable[[str], Any]) -> Change:
    return lambda one, text: replace(one, settings=replace(one.settings, **{name: read(text)}))


def _engine(name: str) -> Change:
    kind = "environment" if name.isupper() else "options"

    def change(one: Configuration, text: str) -> Configuration:
        value = text if name.isupper() else _value(text)
        changed: Any = {kind: {**getattr(one.settings, kind), name: value}}
        return replace(one, settings=replace(one.settings, **changed))

    return change


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError("a number of 1 or more")
    return int(text)


def _number(expected: str, is_expected: Callable[[float], bool]) -> Callable[[str], float]:
    def read(text: str) -> float:
        with suppress(ValueError):
            if is_expected(found := parse_number(text)):
                return found
        raise ValueError(expected)

    return read


_rate = _number("a number above 0", lambda found: found > 0)
_share = _number("a share from 0 to 1", lambda found: 0 <= found <= 1)


def graph_mode(text: str) -> GraphMode | None:
    """Return what is captured; None for `eager`. Raises BadInput for another text."""
    known = (*GraphMode, _EAGER)
    if text not in known:
        raise BadInput(f"--graph: expected {', '.join(known)}, got {text!r}")
    return None if text == _EAGER else GraphMode(text)


_CHANGES: Mapping[str, Change] = {
    **{name: _setting(name, _count) for name in ("tp", "dp", "ep")},
    "graph": _setting("graph", graph_mode),
    "speculative": _setting("speculative", _count),
    "accepted": _setting("accepted", _share),
    "release": _setting("release", str),
    "rate": lambda one, text: replace(one, rate=_rate(text)),
    "concurrency": lambda one, text: replace(one, concurrency=_count(text)),
}
