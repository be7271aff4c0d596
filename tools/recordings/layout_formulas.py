"""Deployments of several layouts as one family: each number as an expression of the ranks.

The members launch the same, so that their files have the same structure, and only numbers differ.
Such a number becomes an expression of `tp`, `dp` or `ep` in braces: `tokens,{25600 // tp}`. Every
member is derived again, and a member that did not take part too.
"""

import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

from collector.codec.canonical import json_object, readable_json
from collector.workloads.deployments import (
    LaunchPattern,
    LoadRange,
    PackagedDeployment,
    laid_out,
)
from collector.workloads.layout import layout_of
from tools.recordings.solver import NotSolved

_SEPARATORS = re.compile(r'([,;"])')
_NUMBER = re.compile(r"\d+")
_FACTOR = re.compile(r"\d+ \* ")
_RANKS = ("tp", "ep", "dp")

Numbers = Mapping[str, int]


def solved_family(
    members: Sequence[PackagedDeployment], held_out: PackagedDeployment, layouts: str
) -> Mapping[str, Any]:
    """Return the content of the file of a family, whose `layouts` have spans of ranks.

    Raises NotSolved where the members do not launch the same, or the one that was held out does
    not follow from them."""
    first, *others = members
    members = [first, *(_in_order_of(first, one) for one in others)]
    held_out = _in_order_of(first, held_out)
    ranks = [_ranks(one) for one in members]
    values = [_value(one) for one in members]
    sizes = sorted({size for one in members for size in one.graph_sizes})
    loads = [_common([one.ranges[at] for one in members]) for at in range(len(members[0].ranges))]
    settings = {
        name: value
        for name, value in members[0].settings.items()
        if all(one.settings.get(name) == value for one in members)
    }
    found: dict[str, Any] = _merged(values, ranks, members[0].model)
    found |= {"layout": layouts, "settings": settings, "graph_sizes": sizes}
    for one, common in zip(found["ranges"], loads, strict=True):
        one["loads"] = common
    for member in (*members, held_out):
        derived = laid_out(found, layout_of(member.layout))
        for one, recorded in zip(derived.ranges, member.ranges, strict=True):
            if only := _difference(one, recorded):
                raise NotSolved(f"{member.model} {member.layout}, {recorded}: {only}")
        if derived.graph_sizes != member.graph_sizes:
            raise NotSolved(f"{member.model} {member.layout}: other sizes of graphs")
    return found


def _in_order_of(first: PackagedDeployment, other: PackagedDeployment) -> PackagedDeployment:
    """Return a deployment with its launches in the order of those of the first, which they equal
    except for numbers. Raises NotSolved where one of them has a launch that the other has not."""
    if len(first.ranges) != len(other.ranges):
        raise NotSolved(f"{other.layout}: other ranges than {first.layout}")
    pairs = zip(first.ranges, other.ranges, strict=True)
    ranges = tuple(replace(two, launches=_ordered(one, two, other.layout)) for one, two in pairs)
    return replace(other, ranges=ranges)


def _ordered(first: LoadRange, other: LoadRange, layout: str) -> tuple[LaunchPattern, ...]:
    left: defaultdict[str, deque[LaunchPattern]] = defaultdict(deque)
    for one in other.launches:
        left[_without_numbers(one)].append(one)
    found = []
    for one in first.launches:
        if not (same := left[_without_numbers(one)]):
            raise NotSolved(f"{layout}, {other}: no launch like {one}")
        found.append(same.popleft())
    if more := [one for same in left.values() for one in same]:
        raise NotSolved(f"{layout}, {other}: only this layout launches {more[0]}")
    return tuple(found)


def _without_numbers(one: LaunchPattern) -> str:
    return _NUMBER.sub("#", _FACTOR.sub("", repr(replace(one, repeats=""))))


def _difference(derived: LoadRange, recorded: LoadRange) -> str:
    if replace(derived, loads=()) == replace(recorded, loads=()):
        return ""
    pairs = (
        (derived.launches, recorded.launches),
        (derived.messages, recorded.messages),
        ((str(derived),), (str(recorded),)),
    )
    return next(
        f"derived {one}, recorded {other}"
        for left, right in pairs
        for one, other in zip(left, right, strict=False)
        if one != other
    )


def _ranks(one: PackagedDeployment) -> Numbers:
    layout = layout_of(one.layout)
    return {"tp": layout.tp, "dp": layout.dp, "ep": layout.ep}


def _value(one: PackagedDeployment) -> dict[str, Any]:
    """Return what the members of a family have in common, except for numbers."""
    ranges = tuple(replace(found, loads=()) for found in one.ranges)
    value = asdict(replace(one, layout="", settings={}, graph_sizes=(), ranges=ranges))
    return json_object(readable_json(value), what="a deployment", key=one.layout)


def _common(ranges: Sequence[LoadRange]) -> list[tuple[int, ...]]:
    return [load for load in ranges[0].loads if all(load in one.loads for one in ranges)]


def _merged(values: Sequence[Any], ranks: Sequence[Numbers], where: str) -> Any:
    first = values[0]
    if all(one == first for one in values):
        return first
    if all(isinstance(one, dict) and one.keys() == first.keys() for one in values):
        return {
            key: _merged([one[key] for one in values], ranks, f"{where}.{key}") for key in first
        }
    if all(isinstance(one, list | tuple) and len(one) == len(first) for one in values):
        return [
            _merged(column, ranks, f"{where}[{at}]")
            for at, column in enumerate(zip(*values, strict=True))
        ]
    if all(isinstance(one, int) for one in values):
        return {"of_layout": _number(values, ranks, where)}
    if all(isinstance(one, str) for one in values):
        return _text(values, ranks, where)
    sizes = [len(one) if isinstance(one, list | tuple | dict) else one for one in values]
    raise NotSolved(f"{where}: layouts differ in more than numbers: {sizes}")


def _text(texts: Sequence[str], ranks: Sequence[Numbers], where: str) -> str:
    split = [_SEPARATORS.split(text) for text in texts]
    if len({len(parts) for parts in split}) > 1:
        raise NotSolved(f"{where}: layouts differ in more than numbers: {texts}")
    return "".join(_size(column, ranks, where) for column in zip(*split, strict=True))


def _size(texts: Sequence[str], ranks: Sequence[Numbers], where: str) -> str:
    if len(set(texts)) == 1:
        return texts[0]
    if len({_NUMBER.sub("#", text) for text in texts}) > 1:  # such as `tokens` and `2 * tokens`
        texts = [text if " * " in text else f"1 * {text}" for text in texts]
    if len({_NUMBER.sub("#", text) for text in texts}) > 1:
        raise NotSolved(f"{where}: layouts differ in more than numbers: {texts}")
    columns = iter(list(zip(*(map(int, _NUMBER.findall(text)) for text in texts), strict=True)))

    def shown(found: re.Match[str]) -> str:
        values = next(columns)
        return found[0] if len(set(values)) == 1 else f"{{{_number(values, ranks, where)}}}"

    return _NUMBER.sub(shown, texts[0])


def _number(values: Sequence[int], ranks: Sequence[Numbers], where: str) -> str:
    """Return the expression of the ranks that has these values. Raises NotSolved without one."""
    found = [
        text
        for name in _RANKS
        for kind in (_divided, _multiplied, _rounded)
        if (text := kind(values, [one[name] for one in ranks], name)) is not None
    ]
    if not found:
        raise NotSolved(f"{where}: no expression of {[*map(dict, ranks)]} has the values {values}")
    return min(found, key=len)


def _divided(values: Sequence[int], sizes: Sequence[int], name: str) -> str | None:
    """Return `offset + total // name`."""
    line = _line(values, [Fraction(1, size) for size in sizes])
    if line is None or line[0] < 0:
        return None
    return f"{line[1]} + {line[0]} // {name}" if line[1] else f"{line[0]} // {name}"


def _multiplied(values: Sequence[int], sizes: Sequence[int], name: str) -> str | None:
    """Return `offset + factor * name`."""
    line = _line(values, [Fraction(size) for size in sizes])
    if line is None:
        return None
    product = name if line[0] == 1 else f"{line[0]} * {name}"
    return f"{line[1]} + {product}" if line[1] else product


def _rounded(values: Sequence[int], sizes: Sequence[int], name: str) -> str | None:
    """Return a number rounded down to a multiple, or its successor."""
    for more in (0, 1):
        most = max(values) - more
        if all(most // n * n + more == value for value, n in zip(values, sizes, strict=True)):
            return f"{most} // {name} * {name}" + (" + 1" if more else "")
    return None


def _line(values: Sequence[int], terms: Sequence[Fraction]) -> tuple[int, int] | None:
    """Return slope and offset of a line through all points, if both are integers and the terms
    are more than one."""
    at = next((at for at, term in enumerate(terms) if term != terms[0]), None)
    if at is None:
        return None
    slope = (values[at] - values[0]) / (terms[at] - terms[0])
    offset = values[0] - slope * terms[0]
    is_line = all(slope * t + offset == v for t, v in zip(terms, values, strict=True))
    is_whole = slope.denominator == offset.denominator == 1
    return (int(slope), int(offset)) if is_line and is_whole and slope else None
