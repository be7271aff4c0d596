"""Shape patterns of kernels, read from data: those of the package, and those of a user's file.

A pattern has axes with their values, rules that they must keep, and what makes the slots of a case
of them: the sizes that its operators' signatures name, or, where a signature does not determine the
slots, the ways in which they are made. A user's file has the same form as the package's
(`collector/data/grid_patterns.yaml`), and is read as strictly.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.resources import files
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from collector.codec.document import Entry, Fields, read_document
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.model import vocabulary
from collector.ops.expression import FUNCTIONS, Expression, dims_of, parse_expression
from collector.ops.registry import find_operator
from collector.ops.signature import Dim, Tensor, Variant, parse_signature

PRODUCTS, EXPERTS = "products", "experts"
# Axes of sizes that only models define together: for weights, width and depth; for the experts of a
# rank, their number, their hidden size and their own size.
OF_MODELS = {PRODUCTS: ("n", "k"), EXPERTS: ("e", "h", "i")}
_ABSENT = "-"
_NAME = re.compile(r"[a-z_]+")  # of an axis, and of a column
_KERNEL = re.compile(r"\w[\w.-]{0,199}")
_LARGEST = 1 << 40  # of a value
_MOST_POINTS = 10**9  # of a pattern

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
    they have one. `sizes` are the dimensions that a name of a signature stands for, unless it is
    that of an axis: without `ways`, the ways of each kernel follow from them. `source` is the key
    of OF_MODELS for one more axis, or empty. Points that violate a `keep` rule have no case.
    `columns` are `Runtime ...` columns of a case, and `ends` is one more, where groups of its rows
    are uneven."""

    name: str
    axes: Mapping[str, tuple[int, ...]]
    value_names: Mapping[str, str]
    source: str
    keep: tuple[Expression, ...]
    ways: tuple[SlotTemplates, ...]
    kernels: tuple[str, ...]
    columns: Mapping[str, Expression] = field(default_factory=lambda: MappingProxyType({}))
    ends: Ends | None = None
    sizes: Mapping[str, tuple[Expression, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def of_kernel(self, kernel_type: str) -> "GridPattern":
        """Return the pattern with the ways of a kernel. Raises BadInput where its operator has no
        signature that they follow from."""
        return self if self.ways else replace(self, ways=_ways_of(self, kernel_type))

    @property
    def model_axes(self) -> tuple[str, ...]:
        """The names of the numbers on the axis of models; none where there is no such axis."""
        return OF_MODELS.get(self.source, ())

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
    """The patterns, each of other kernels, and the values that have a name."""

    values: Mapping[str, tuple[int, ...]]
    patterns: tuple[GridPattern, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of weights where no model defines them."""
        return self.values["nk"]

    def of(self, kernel_type: str) -> GridPattern | None:
        found = next((one for one in self.patterns if kernel_type in one.kernels), None)
        return found and found.of_kernel(kernel_type)


@cache
def bundled_patterns() -> GridPatterns:
    """Return the patterns that are part of the package."""
    path = files("collector") / "data" / "grid_patterns.yaml"
    return _read(path.read_text(encoding="utf-8"), "grid_patterns.yaml", {})


def read_patterns(path: Path) -> GridPatterns:
    """Return the patterns of a user's file.

    It may use the package's values by their names. Raises BadInput, with the line."""
    with file_errors(path):
        data = read_small_file(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"expected text in UTF-8, got byte {error.start}", path=path) from error
    return _read(text, str(path), bundled_patterns().values)


def _read(text: str, path: str, known: Mapping[str, tuple[int, ...]]) -> GridPatterns:
    document = read_document(text, path).fields(("values", "patterns"), ("patterns",))
    values = dict(known)
    for name, entry in document.read("values", Entry.mapping, Fields()).items():
        if name in OF_MODELS:
            raise entry.refusal(f"expected another name than {', '.join(OF_MODELS)}")
        values[name] = _integers(entry)
    found: list[GridPattern] = []
    named: dict[str, str] = {}  # kernels, and their patterns
    for name, entry in document["patterns"].mapping().items():
        one = _pattern(name, entry, values)
        for kernel in one.kernels:
            if (other := named.setdefault(kernel, name)) != name:
                raise entry.refusal(f"the kernel {kernel} is in the pattern {other}, too")
        found.append(one)
    if not found:
        raise document["patterns"].refusal("expected at least one pattern")
    return GridPatterns(MappingProxyType(values), tuple(found))


def _integers(entry: Entry) -> tuple[int, ...]:
    found = tuple(item.integer(0) for item in entry.items())
    if max(found) > _LARGEST or len(set(found)) < len(found):
        raise entry.refusal(f"expected distinct integers from 0 to {_LARGEST}")
    return found


_KEYS = ("axes", "keep", "ways", "sizes", "kernels", "columns", "ends")


def _pattern(name: str, entry: Entry, values: Mapping[str, tuple[int, ...]]) -> GridPattern:
    fields = entry.fields(_KEYS, ("axes", "kernels"))
    if {"ways", "sizes"} <= fields.keys():
        raise fields["ways"].refusal("expected either ways or sizes")
    axes, value_names, source = _axes(fields["axes"], values)
    names = (*axes, *OF_MODELS.get(source, ()))
    columns = fields.read("columns", Entry.mapping, Fields())
    for kernel in fields["kernels"].items():
        if not _KERNEL.fullmatch(kernel.text()):
            raise kernel.mismatch("a kernel type", repr(kernel.text()))
    sizes = fields.read("sizes", Entry.mapping, Fields())
    found = GridPattern(
        name,
        axes,
        value_names,
        source,
        fields.read("keep", lambda of: tuple(_expression(one, names) for one in of.items()), ()),
        fields.read("ways", lambda of: tuple(_way(one, names) for one in of.items()), ()),
        tuple(fields["kernels"].distinct_texts()),
        {_column(of.name, of): _expression(of, names) for of in columns.values()},
        fields.read("ends", lambda of: _ends(of, names), None),
        {size: _dims(of, names) or () for size, of in sizes.items()},
    )
    for kernel_type in found.kernels:
        _parsed(fields["kernels"], partial(found.of_kernel, kernel_type))
    return found


def _ways_of(pattern: GridPattern, kernel_type: str) -> tuple[SlotTemplates, ...]:
    """Return the slots of each variant of a signature, made of the axes of a pattern. Variants of
    the same dtypes are other layouts of the same tensors: the first of them is taken."""
    op = find_operator(kernel_type)
    if op is None:
        raise BadInput(f"expected ways: {kernel_type} is not declared")
    variants: dict[object, Variant] = {}
    for one in parse_signature(op.signature).variants:
        variants.setdefault(one.dtypes, one)
    return tuple(
        SlotTemplates(
            *(tuple(_template(pattern, one) for one in side) for side in (of.inputs, of.outputs))
        )
        for of in variants.values()
    )


def _template(pattern: GridPattern, tensor: Tensor) -> Dims:
    if tensor.is_refused:
        return None
    if tensor.name in pattern.sizes:
        return pattern.sizes[tensor.name]
    if tensor.is_optional and (tensor.dims is None or tensor.is_number):
        return None
    if tensor.is_number:
        return ()
    if tensor.dims is None:
        return _sizes_of(pattern, tensor, tensor.name)
    return tuple(one for dim in tensor.dims for one in _made(pattern, tensor, dim))


def _made(pattern: GridPattern, tensor: Tensor, dim: Dim) -> tuple[Expression, ...]:
    if dim.size is not None:
        return (Expression(dim.text),)
    if dim.ones:
        return (Expression("1"),) * len(_sizes_of(pattern, tensor, dim.ones))
    if dim.computed is None:
        return _sizes_of(pattern, tensor, dim.group or dim.name)
    text = dim.text
    for name in dim.computed.names:
        (of,) = _sizes_of(pattern, tensor, name)
        text = re.sub(rf"\b{name}\b", of.text if of.text.isalnum() else f"({of.text})", text)
    return (parse_expression(text),)


def _sizes_of(pattern: GridPattern, tensor: Tensor, name: str) -> tuple[Expression, ...]:
    if name in pattern.sizes:
        return pattern.sizes[name]
    if name in pattern.axes or name in pattern.model_axes:
        return (Expression(name),)
    raise BadInput(f"expected the size {name} of {tensor.name} [{tensor.text}]")


def _axes(
    entry: Entry, values: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str], str]:
    """Return the values of the axes, the names of these values, and the axis of models."""
    axes: dict[str, tuple[int, ...]] = {}
    value_names: dict[str, str] = {}
    source = ""
    for name, of in entry.mapping().items():
        if not _NAME.fullmatch(name) or name in FUNCTIONS:
            raise of.refusal("expected a name of small letters and `_` that is no function")
        if of.is_list:
            axes[name] = _integers(of)
            continue
        known = of.choice((*values, *OF_MODELS))
        if known not in OF_MODELS:
            axes[name], value_names[name] = values[known], known
        elif source:
            raise of.refusal(f"expected at most one axis of {' or '.join(OF_MODELS)}")
        else:
            source = known
    if not axes and not source:
        raise entry.refusal("expected at least one axis")
    if both := sorted(set(axes) & set(OF_MODELS.get(source, ()))):
        raise entry.refusal(f"{source} defines {', '.join(both)}: expected another name")
    if (points := prod(map(len, axes.values()))) > _MOST_POINTS:
        raise entry.refusal(f"expected axes of at most {_MOST_POINTS:,} points, got {points:,}")
    return axes, value_names, source


def _way(entry: Entry, names: Iterable[str]) -> SlotTemplates:
    fields = entry.fields(("inputs", "outputs"), ("inputs", "outputs"))
    sides = []
    for side in ("inputs", "outputs"):
        if not fields[side].is_list:
            raise fields[side].mismatch("a list of shapes")
        sides.append(tuple(_dims(slot, names) for slot in fields[side].numbered()))
    return SlotTemplates(*sides)


def _dims(entry: Entry, names: Iterable[str]) -> Dims:
    if entry.is_list or entry.is_mapping:
        raise entry.mismatch('a shape, such as "t, d"')
    text = str(entry.node.value).strip()  # empty for a scalar
    if text == _ABSENT:
        return None
    found = _parsed(entry, lambda: dims_of(text))
    for one in found:
        _check_names(entry, one, names)
    return found


def _expression(entry: Entry, names: Iterable[str]) -> Expression:
    text = entry.text()
    found = _parsed(entry, lambda: parse_expression(text))
    _check_names(entry, found, names)
    return found


Parsed = TypeVar("Parsed")


def _parsed(entry: Entry, parse: Callable[[], Parsed]) -> Parsed:
    try:
        return parse()
    except BadInput as error:
        raise entry.refusal(str(error)) from error


def _check_names(entry: Entry, one: Expression, names: Iterable[str]) -> None:
    for name in sorted(one.names - set(names)):
        raise entry.refusal(f"unknown name {name!r}; expected one of {', '.join(sorted(names))}")


def _column(name: str, entry: Entry) -> str:
    column = name.rpartition(".")[2]
    if not _NAME.fullmatch(column):
        raise entry.refusal("expected a column of small letters and `_`")
    return vocabulary.RUNTIME_PREFIX + column


def _ends(entry: Entry, names: Iterable[str]) -> Ends:
    keys = ("column", "rows", "groups", "percent")
    fields = entry.fields(keys, keys)
    column = _column(fields["column"].text(), fields["column"])
    return Ends(column, *(_expression(fields[key], names) for key in keys[1:]))
