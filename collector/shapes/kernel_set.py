"""The kernels that a release of a serving stack launches in a step: its patterns, read from data.

A pattern is a kernel type with templates of its slots (`DT_BF16 (tokens, hidden)`, `-` for an
absent one), with a number of launches per step and a condition; or a matrix product, whose kernels
follow from the quantisation; or a collective. `INT8 NZ (R, C)` is a matrix whose cells record its
blocks, `INT8 FRACTAL_NZ (E, R, C)` one whose cells record its shape and that format.

A release is described by the differences from another one: `like` names it, `without` its layers
that are left out. Lines of a layer replace all lines of that layer or, with `behind`, follow the
last line of another one. What is not set applies from the other release.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from collector.codec.errors import BadInput
from collector.model.vocabulary import FRACTAL_NZ, dtype_of
from collector.ops.expression import Expression, dims_of, parse_expression
from collector.ranks.collective import OPERATIONS


@dataclass(frozen=True, slots=True)
class ReleaseSettings:
    """Numbers of tokens, and switches as 0 or 1.

    dense_split_above_tokens   a dense model's larger passes are split, if the layout requests it
    most_dispatched_tokens     passes of at most so many dispatch tokens to experts apart
    splits_sparse_attention    whether sparse attention is split where a group splits its tokens
    most_mlapo_tokens          passes of at most so many have one kernel before sparse attention
    routes_latent_in_float     whether routers of models with latent attention compute in FLOAT"""

    dense_split_above_tokens: int
    most_dispatched_tokens: int
    splits_sparse_attention: int
    most_mlapo_tokens: int
    routes_latent_in_float: int


_SLOT = re.compile(r"(?P<dtype>[A-Z0-9_]+)(?P<form> NZ| FRACTAL_NZ)? \((?P<dims>.*)\)")
_ABSENT = "-"
USUAL_RELEASE = "vllm-ascend-0.18"  # its set was compared with traces
SCHEMES = ("bf16", "static", "given", "dynamic")
_HABITS = tuple(one.name for one in fields(ReleaseSettings))


@dataclass(frozen=True, slots=True)
class SlotPattern:
    """One tensor; `dims` is None where it is absent.

    With `in_blocks` the last two dims are a matrix whose blocks the row records."""

    dtype: str
    format: str
    in_blocks: bool
    dims: tuple[Expression, ...] | None


@dataclass(frozen=True, slots=True)
class KernelPattern:
    """A kernel.

    `columns` are `Runtime ...` columns, each an expression, a quoted word, or the name of a list of
    collector/shapes/step.py."""

    kernel: str
    inputs: tuple[SlotPattern, ...]
    outputs: tuple[SlotPattern, ...]
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProductPattern:
    """A weight of `width` x `depth`, multiplied with `rows` rows.

    `scheme` is one of SCHEMES and says how it is quantised where the model is; with `given` the
    input is INT8 already, by scales computed beforehand. `has_bias` adds a bias to plain numbers; a
    quantised scheme includes the model's bias in its own."""

    rows: Expression
    width: Expression
    depth: Expression
    scheme: str
    may_be_nz: bool
    has_bias: Expression


@dataclass(frozen=True, slots=True)
class CollectivePattern:
    """A collective over the ranks of tp or ep; `message` is in bytes as in `ranks.collective`."""

    operation: str
    message: Expression
    group: str


@dataclass(frozen=True, slots=True)
class StepPattern:
    """One line of a set: its layer in the model, its launch, and how often."""

    layer: str
    launch: KernelPattern | ProductPattern | CollectivePattern
    times: Expression
    when: Expression
    source: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition, and what a release does then that its set does not describe."""

    when: Expression
    launch: str


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The patterns of a release, in their order, and its behaviour that they do not describe."""

    release: str
    patterns: tuple[StepPattern, ...]
    unknown: tuple[Unknown, ...]
    habits: ReleaseSettings


def bundled_releases() -> tuple[str, ...]:
    """Return the releases whose sets are part of the package."""
    folder = files("collector") / "data" / "kernel_sets"
    return tuple(sorted(one.name.removesuffix(".yaml") for one in folder.iterdir()))


@cache
def find_kernel_set(release: str) -> KernelSet:
    """Return the set of a release. Raises BadInput for one that is not part of the package."""
    if release not in bundled_releases():
        known = ", ".join(bundled_releases())
        raise BadInput(f"no kernel set for release {release!r}: expected one of {known}")
    file = files("collector") / "data" / "kernel_sets" / f"{release}.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    other = find_kernel_set(document["like"]) if "like" in document else None
    return read_kernel_set(document, release, other)


def read_kernel_set(document: Any, release: str, other: KernelSet | None = None) -> KernelSet:
    """Return the set of a document's lines; with `other`, the set of that release with changes.

    Raises BadInput, with the line's number, for an invalid line."""
    try:
        habits = ReleaseSettings(*(_setting(document, name, other) for name in _HABITS))
        unknown = tuple(
            Unknown(parse_expression(str(one["when"])), str(one["what"]))
            for one in document.get("unknown", ())
        )
    except (BadInput, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"kernel set {release}: {error}") from error
    found: list[tuple[StepPattern, str]] = []
    for number, line in enumerate(document["step"], start=1):
        try:
            found.append(_pattern(dict(line)))
        except (BadInput, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"kernel set {release}, line {number} of its step: {error}") from error
    patterns = tuple(pattern for pattern, _ in found)
    if other is not None:
        without = frozenset(map(str, document.get("without", ())))
        patterns = _changed(release, other.patterns, found, without)
        unknown = unknown if "unknown" in document else other.unknown
    return KernelSet(release, patterns, unknown, habits)


def _setting(document: Any, name: str, other: KernelSet | None) -> int:
    number = document.get(name, getattr(other.habits, name) if other is not None else 0)
    if type(number) is not int or number < 0:
        raise BadInput(f"{name}: expected a non-negative integer, got {number!r}")
    return number


def _changed(
    release: str,
    old: tuple[StepPattern, ...],
    new: list[tuple[StepPattern, str]],
    without: frozenset[str],
) -> tuple[StepPattern, ...]:
    """Return the old lines with the new ones in place of those of their layer, or after a layer.

    Lines of layers in `without` are left out. Raises BadInput for a layer that the old lines lack.
    """
    places = {pattern.layer for pattern in old}
    unknown_layers = [name for name in without if name not in places]
    unknown_layers += [
        after_layer or one.layer
        for one, after_layer in new
        if (after_layer or one.layer) not in places
    ]
    if unknown_layers:
        raise BadInput(f"kernel set {release}: unknown layer {', '.join(unknown_layers)}")
    replaced = {one.layer for one, after_layer in new if not after_layer}
    last = {pattern.layer: at for at, pattern in enumerate(old)}
    found: list[StepPattern] = []
    for at, pattern in enumerate(old):
        if pattern.layer not in without | replaced:
            found.append(pattern)
        if last[pattern.layer] == at:
            found += [one for one, place in new if (place or one.layer) == pattern.layer]
    return tuple(found)


def _pattern(line: dict[str, Any]) -> tuple[StepPattern, str]:
    """Return the pattern, and the layer that it follows, if the line names one."""
    layer, times = str(line.pop("layer")), parse_expression(str(line.pop("times")))
    when, source = parse_expression(str(line.pop("when", 1))), str(line.pop("source"))
    after_layer = str(line.pop("behind", ""))
    if "product" in line:
        launch: KernelPattern | ProductPattern | CollectivePattern = _product(line)
    elif "collective" in line:
        launch = _collective(line)
    else:
        launch = _kernel(line)
    if line:
        raise BadInput(f"unknown key {', '.join(map(str, line))}")
    return StepPattern(layer, launch, times, when, source), after_layer


def _product(line: dict[str, Any]) -> ProductPattern:
    rows, width, depth = (parse_expression(str(part)) for part in line.pop("product"))
    scheme, weight = line.pop("scheme"), line.pop("weight", "NZ")
    bias = parse_expression(str(line.pop("bias", 0)))
    if scheme not in SCHEMES or weight not in ("NZ", "ND"):
        raise BadInput(
            f"expected scheme {' or '.join(SCHEMES)}, and weight NZ or ND, "
            f"got {scheme!r} and {weight!r}"
        )
    return ProductPattern(rows, width, depth, scheme, weight == "NZ", bias)


def _collective(line: dict[str, Any]) -> CollectivePattern:
    operation, group = line.pop("collective"), line.pop("over")
    if operation not in OPERATIONS or group not in ("tp", "ep"):
        raise BadInput(f"expected a collective ({', '.join(OPERATIONS)}) over tp or ep")
    return CollectivePattern(operation, parse_expression(str(line.pop("bytes"))), group)


def _kernel(line: dict[str, Any]) -> KernelPattern:
    columns = line.pop("columns", {})
    return KernelPattern(
        line.pop("kernel"),
        tuple(_slot(text) for text in line.pop("inputs")),
        tuple(_slot(text) for text in line.pop("outputs")),
        {str(name): str(text) for name, text in columns.items()},
    )


def _slot(text: str) -> SlotPattern:
    if text == _ABSENT:
        return SlotPattern("DT_UNDEFINED", "NULL", False, None)
    found = _SLOT.fullmatch(text)
    if found is None or dtype_of(found["dtype"]) is None:
        raise BadInput(f"expected a slot such as DT_BF16 (tokens, hidden), or -, got {text!r}")
    dims = dims_of(found["dims"])
    return SlotPattern(
        found["dtype"], FRACTAL_NZ if found["form"] else "ND", found["form"] == " NZ", dims
    )
