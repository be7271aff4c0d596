"""Shape patterns of kernels, read from data.

A pattern has axes with their values, rules that they must keep, and the ways in which a case's
slots are made of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

from collector.codec.errors import BadInput
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.shapes.expression import Expression, dims_of, parse_expression

PRODUCTS, EXPERTS = "products", "experts"
# Axes of sizes that only models define together: for weights, width and depth; for the experts of a
# rank, their number, their hidden size and their own size.
OF_MODELS = {PRODUCTS: ("n", "k"), EXPERTS: ("e", "h", "i")}
_ABSENT = "-"
_NAME = re.compile(r"[a-z_]+")

Dims = tuple[Expression, ...] | None


@dataclass(frozen=True, slots=True)
class SlotTemplates:
    """Templates of inputs and outputs; None for a slot that is absent."""

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]


@dataclass(frozen=True, slots=True)
class Ends:
    """The column with the end of each group of rows.

    Some groups have `percent` less than an even share, others more. At 0 percent the column is
    absent, which means even groups."""

    column: str
    rows: Expression
    groups: Expression
    percent: Expression


@dataclass(frozen=True, slots=True)
class GridPattern:
    """A shape pattern.

    `axes` are names with their values, in order, and `value_names` the names of their values, where
    they have one. `source` is the key of OF_MODELS for one more axis, or empty. Points that violate
    a `keep` rule have no case. `columns` are `Runtime ...` columns of a case, and `ends` is one
    more, where groups of its rows are uneven."""

    name: str
    axes: Mapping[str, tuple[int, ...]]
    value_names: Mapping[str, str]
    source: str
    keep: tuple[Expression, ...]
    ways: tuple[SlotTemplates, ...]
    kernels: tuple[str, ...]
    columns: Mapping[str, Expression] = field(default_factory=lambda: MappingProxyType({}))
    ends: Ends | None = None

    @property
    def model_axes(self) -> tuple[str, ...]:
        """The names of the numbers on the axis of models; none where there is no such axis."""
        return OF_MODELS.get(self.source, ())

    @property
    def own_columns(self) -> frozenset[str]:
        """The columns that a point sets, which replace those of a row."""
        return frozenset((*self.columns, *([self.ends.column] if self.ends else [])))

    @property
    def of_shapes(self) -> "GridPattern":
        """The pattern without the axes that only columns use."""
        document = [*self.columns.values(), *([self.ends.percent] if self.ends else [])]
        column_axes = {one.text.strip() for one in document}
        return replace(
            self,
            axes={name: of for name, of in self.axes.items() if name not in column_axes},
            keep=tuple(one for one in self.keep if not column_axes & set(_NAME.findall(one.text))),
            columns={},
            ends=None,
        )


@dataclass(frozen=True, slots=True)
class GridPatterns:
    """The patterns; `sizes` are the sizes of weights where no model defines them."""

    sizes: tuple[int, ...]
    patterns: tuple[GridPattern, ...]

    def of(self, kernel_type: str) -> GridPattern | None:
        return next((one for one in self.patterns if kernel_type in one.kernels), None)


@cache
def bundled_patterns() -> GridPatterns:
    """Return the patterns that are part of the package."""
    text = (files("collector") / "data" / "grid_patterns.yaml").read_text(encoding="utf-8")
    return read_patterns(yaml.safe_load(text))


def read_patterns(document: Any) -> GridPatterns:
    """Return the patterns of a document. Raises BadInput with the name of an invalid pattern."""
    values = {name: tuple(map(int, of)) for name, of in document["values"].items()}
    found = []
    for name, reported in document["patterns"].items():
        try:
            found.append(_pattern(name, reported, values))
        except (BadInput, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"pattern {name}: {error!r}") from error
    return GridPatterns(values["nk"], tuple(found))


def _pattern(name: str, reported: Any, values: Mapping[str, tuple[int, ...]]) -> GridPattern:
    axes = {
        axis: values[of] if isinstance(of, str) else tuple(map(int, of))
        for axis, of in reported["axes"].items()
        if of not in (PRODUCTS, EXPERTS)
    }
    source, *more = [of for of in reported["axes"].values() if of in (PRODUCTS, EXPERTS)] or [""]
    if more:
        raise BadInput("expected at most one axis of models")
    return GridPattern(
        name,
        axes,
        {axis: of for axis, of in reported["axes"].items() if isinstance(of, str) and axis in axes},
        source,
        tuple(parse_expression(text) for text in reported.get("keep", ())),
        tuple(
            SlotTemplates(
                *(tuple(_dims(slot) for slot in way[side]) for side in ("inputs", "outputs"))
            )
            for way in reported["ways"]
        ),
        tuple(reported["kernels"]),
        {
            RUNTIME_PREFIX + column: parse_expression(str(text))
            for column, text in reported.get("columns", {}).items()
        },
        _ends(reported["ends"]) if "ends" in reported else None,
    )


def _ends(reported: Any) -> Ends:
    rows, groups, percent = (
        parse_expression(str(reported[name])) for name in ("rows", "groups", "percent")
    )
    return Ends(RUNTIME_PREFIX + str(reported["column"]), rows, groups, percent)


def _dims(text: str | int) -> Dims:
    if text == _ABSENT:
        return None
    return dims_of(str(text))
