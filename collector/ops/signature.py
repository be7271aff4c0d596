"""The signature of an operator: its arguments and outputs by name, with named dimensions.

    x T:float[*rows, k], weight T[n, k], bias T[n]? -> y T[*rows, n] where k % 16 == 0

A tensor has a name, a dtype and its dimensions. The rows of a case are read, checked, expanded on
grids and counted by it; what it cannot express is a function of the operator.

dimensions  a name is one size wherever it occurs; a number is that size; an expression of names is
            computed. `*rows` is any number of dimensions, the same wherever it occurs; `&s`
            broadcasts with the others to `*s`; `*` is any shape. A tensor may have several such
            groups if others define all but one. `s_rank` is the number of dimensions of `*s`, and
            `1*s` are as many of size 1. `[]` is a scalar, `[#]` one number: a scalar or one
            element. `[n]|[1, n]` is the first form that fits. Without brackets, any shape
dtypes      a name (`INT32`, `bf16`), or several (`INT32|INT64`); a class (`half`, `float`,
            `floating`, `integer`, `number`); a letter, which is one dtype wherever it occurs, with
            its class or names where it occurs first (`T:float`), or one of several (`T|FLOAT`).
            Without one, any
`?`         the tensor may be absent: `has_x` is 1 where the row has the tensor `x`, and 0 without.
            The dtype of an absent tensor does not count, unless it may be one number
`!`         the row has to have the output, such as for its dtype
`-x`        the argument exists, but is not replayed: it has to be absent
`+`         the last argument repeats
roles       `pages...` are those of a pool and do not change the kernel; `table_width...` is the
            width of the table that lists the pages (of the pool with the same ending)
`where`     conditions on sizes; those with names of absent tensors do not count, nor `has_y` of an
            output of a row without outputs
`;`         separates the variants of a call; the first variant that fits is the one
`<k, n>`    these dimensions; in the next variant, which is the same otherwise, in reverse order: a
            matrix that may be transposed in memory, and what is laid out as it is. `transposed` is
            0 in the first of the two, and 1 in the other
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, repeat
from math import prod
from types import MappingProxyType

from collector.codec.errors import BadInput, CaseRejected
from collector.model.case import Case, Shape, Slot, logical_shape
from collector.model.vocabulary import (
    DTYPES,
    FRACTAL_NZ,
    dtype_of,
    plain_format,
    torch_dtype_of,
)
from collector.ops.expression import Expression, align, block_of, parse_expression, split_outside
from collector.ops.slots import broadcast, spelling

CLASSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "half": ("FLOAT16", "DT_BF16"),
        "float": ("FLOAT16", "DT_BF16", "FLOAT"),
        "integer": ("INT32", "INT64"),
    }
)
_WIDE = {  # classes, with their text
    "floating": ("a floating-point dtype", {one.spelling for one in DTYPES if one.is_floating}),
    "number": ("another dtype than BOOL", {one.spelling for one in DTYPES} - {"BOOL"}),
}
POOL, TABLE_WIDTH = "pages", "table_width"

_TENSOR = re.compile(
    r"(?P<refused>-)?(?P<name>[A-Za-z_]\w*)(?:\s+(?P<dtype>[\w|:]+))?"
    r"\s*(?P<forms>\[[^\]]*\](?:\|\[[^\]]*\])*)?(?P<ends>[?+!]*)"
)
_SIMPLE = re.compile(r"[A-Za-z_]\w*")
_LETTER = re.compile(r"[A-Z]\d?")
_RANK = "_rank"
_HAS = "has_"
_TURNED = re.compile(r"<([^<>]*)>")
_ONES = re.compile(r"1\*([A-Za-z_]\w*)")

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension: a `size`, a `name`, a `computed` size, or all dimensions of a `group`, or as
    many `ones`."""

    text: str
    size: int | None = None
    name: str = ""
    computed: Expression | None = None
    group: str | None = None
    ones: str = ""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or an output. `text` are its dimensions as they are written. `letter` is the name
    of its dtype, `dtypes` its spellings, classes and letters, `accepted` all spellings of these.
    `dims` are None for any shape; `group` is the first that begins with `*` or `&`. A tensor
    `is_split` if other tensors define some of its groups. `plain` are the names before and after a
    group if it has nothing else. A `number` is a scalar or has one element. `others` have its other
    dimensions."""

    name: str
    text: str
    letter: str
    dtypes: tuple[str, ...]
    accepted: frozenset[str]
    dims: tuple[Dim, ...] | None
    group: int | None
    is_split: bool
    is_number: bool
    is_optional: bool
    is_refused: bool
    is_recorded: bool
    repeats: bool
    plain: tuple[Dim | None, tuple[str, ...], tuple[str, ...]] | None
    others: tuple["Tensor", ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of the call. `dtypes` are those that inputs have to have, by position."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    conditions: tuple[Expression, ...]
    presence: Sizes
    dtypes: tuple[tuple[int, frozenset[str]], ...]

    def admits(self, spellings: Sequence[str]) -> bool:
        """Return whether inputs of these dtypes may be of this form; the others need no reading."""
        return all(at < len(spellings) and spellings[at] in known for at, known in self.dtypes)

    def read(self, case: Case) -> "tuple[str, _Reading]":
        """Return what is wrong with a case, and the names that it defines."""
        reading, conditions = _Reading(self), self.conditions
        if case.outputs is None:
            outputs = {_HAS + one.name for one in self.outputs}
            conditions = tuple(one for one in conditions if not one.names & outputs)
        return reading.read_sides(self, case) or reading.finish(conditions), reading


@dataclass(frozen=True, slots=True)
class Signature:
    """All forms of a call, which have the same arguments."""

    text: str
    variants: tuple[Variant, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.variants[0].inputs)

    @property
    def optional(self) -> frozenset[int]:
        """Return the positions of inputs that may be absent."""
        return _optional(one.inputs for one in self.variants)

    @property
    def optional_outputs(self) -> frozenset[int]:
        return _optional(one.outputs for one in self.variants)

    @property
    def variadic(self) -> bool:
        inputs = self.variants[0].inputs
        return bool(inputs) and inputs[-1].repeats

    @property
    def pools(self) -> dict[str, str]:
        """Return the arguments whose first dimension is the pages of a pool, each with the argument
        that lists its pages, or "" if the call has none."""
        first = {
            name: one.name
            for one in self.variants[0].inputs
            for name in (dim.text for dim in one.dims or ())
            if name.startswith(TABLE_WIDTH)
        }
        return {
            one.name: first.get(TABLE_WIDTH + one.dims[0].text.removeprefix(POOL), "")
            for one in self.variants[0].inputs
            if one.dims and one.dims[0].text.startswith(POOL)
        }

    def read(self, case: Case) -> Sizes | str:
        """Return the sizes of a case by name, groups as their numbers of elements; or what is wrong
        with it."""
        complaint, reading = self._best(case)
        return complaint or reading.sizes

    def complaint(self, case: Case) -> str:
        """Return what is wrong with a case; empty if it fits."""
        return self._best(case)[0]

    def _best(self, case: Case) -> "tuple[str, _Reading]":
        """Read a case by the first variant that fits, or else the one with the most tensors that
        fit."""
        best: tuple[str, _Reading] | None = None
        variants = self.variants
        if len(variants) > 1:
            spellings = [spelling(slot) for slot in case.inputs or ()]
            variants = tuple(one for one in variants if one.admits(spellings)) or variants
        for variant in variants:
            found = variant.read(case)
            if not found[0]:
                return found
            if best is None or found[1].fitting > best[1].fitting:
                best = found
        assert best is not None
        return best

    def sizes(self, case: Case) -> Sizes:
        """Return the sizes of a case that fits. Raises CaseRejected for others."""
        if len(self.variants) == 1:  # computed sizes need not be compared again
            variant = self.variants[0]
            reading = _Reading(variant)
            found: Sizes | str = reading.read_sides(variant, case) or reading.sizes
        else:
            found = self.read(case)
        if isinstance(found, str):
            raise CaseRejected(found)
        return found


@lru_cache(maxsize=1024)
def parse_signature(text: str) -> Signature:
    """Return the signature of a text. Raises BadInput that names what is wrong."""
    variants = tuple(
        _variant(" ".join(each.split()), names)
        for part in split_outside(text, ";")
        for each, names in _orders(part)
    )
    first = variants[0]
    for other in variants[1:]:
        for side in ("inputs", "outputs"):
            names = [[one.name for one in getattr(each, side)] for each in (first, other)]
            if names[0] != names[1]:
                raise BadInput(f"expected the {side} {', '.join(names[0])} in each variant")
    tensors, found = [(*one.inputs, *one.outputs) for one in variants], list[Variant]()
    optional = {one.name for side in tensors for one in side if one.is_optional}
    for variant, ones in zip(variants, tensors, strict=True):
        has = {_HAS + one.name: int(not one.is_optional) for one in ones if one.name in optional}
        found.append(replace(variant, presence={**variant.presence, **has}))
    return Signature(text, tuple(found))


def _orders(text: str) -> list[tuple[str, Sizes]]:
    """Return a variant with dimensions as they are written, and with those of `<>` in reverse."""
    tensors, where, conditions = text.partition(" where ")
    if not _TURNED.search(tensors):
        return [(text, {})]
    written = _TURNED.sub(lambda of: of[1], tensors)
    turned = _TURNED.sub(lambda of: ",".join(reversed(split_outside(of[1], ","))), tensors)
    return [
        (side + where + conditions, {"transposed": at}) for at, side in enumerate((written, turned))
    ]


def _variant(text: str, names: Sizes) -> Variant:
    tensors, _, where = text.partition(" where ")
    inputs, arrow, outputs = tensors.partition("->")
    if not arrow:
        raise BadInput(f"signature: expected `arguments -> outputs`, got {text.strip()!r}")
    letters: dict[str, tuple[str, ...]] = {}
    arguments, results = (
        tuple(_tensor(part, letters) for part in split_outside(side, ",") if part.strip())
        for side in (inputs, outputs)
    )
    conditions = tuple(
        parse_expression(part.strip()) for part in split_outside(where, ",") if part.strip()
    )
    given = {name for one in arguments if not one.is_split for name in _groups_of(one)}
    if ambiguous := [
        one.name for one in arguments if one.is_split and len(_groups_of(one) - given) > 1
    ]:
        raise BadInput(f"signature: expected others to define the groups of {ambiguous[0]}")
    dtypes = (
        (at, frozenset(one.dtypes))
        for at, one in enumerate(arguments)
        if one.dtypes and not one.is_optional and not any(map(_LETTER.fullmatch, one.dtypes))
    )
    return Variant(arguments, results, conditions, names, tuple(dtypes))


def _tensor(text: str, letters: dict[str, tuple[str, ...]]) -> Tensor:
    found = _TENSOR.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"signature: expected `name DTYPE[dimensions]`, got {text.strip()!r}")
    letter, dtypes = _dtypes(found["dtype"] or "", letters)
    text = (found["forms"] or "[]")[1:-1]
    accepted = frozenset[str]().union(*(_WIDE[one][1] if one in _WIDE else {one} for one in dtypes))
    ends, is_refused = found["ends"], bool(found["refused"])

    def formed(dims: tuple[Dim, ...] | None, others: tuple[Tensor, ...] = ()) -> Tensor:
        groups = [at for at, dim in enumerate(dims or ()) if dim.group is not None]
        group = Dim("*", group="") if dims is None else dims[groups[0]] if groups else None
        is_split = len(groups) > 1 or any(dim.ones for dim in dims or ())
        names = [dim.name for dim in dims or () if dim.group is None]
        is_plain = all(names) and not (is_split or others or is_refused or found["forms"] == "[#]")
        start = groups[0] if groups else len(names)
        return Tensor(
            *(found["name"], text, letter, dtypes, accepted, dims, groups[0] if groups else None),
            plain=(group, tuple(names[:start]), tuple(names[start:])) if is_plain else None,
            is_split=is_split,
            is_number=found["forms"] == "[#]",
            is_optional="?" in ends or is_refused,
            is_refused=is_refused,
            is_recorded="!" in ends,
            repeats="+" in ends,
            others=others,
        )

    if found["forms"] in (None, "[#]"):
        return formed(None)
    first, *others = (
        tuple(_dim(part) for part in split_outside(form, ",") if part.strip())
        for form in found["forms"][1:-1].split("]|[")
    )
    return formed(first, tuple(map(formed, others)))


def _dim(text: str) -> Dim:
    text = text.strip()
    if ones := _ONES.fullmatch(text):
        return Dim(text, ones=ones[1])
    if text[:1] in ("*", "&"):
        if text[1:] and not _SIMPLE.fullmatch(text[1:]):
            raise BadInput(f"signature: expected the name of a group, got {text!r}")
        return Dim(text, group=text[1:])
    if text.isdecimal():
        return Dim(text, size=int(text))
    if _SIMPLE.fullmatch(text) and not text.endswith(_RANK):
        return Dim(text, name=text)
    return Dim(text, computed=parse_expression(text))


def _dtypes(text: str, letters: dict[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
    letter, colon, names = text.partition(":")
    if not colon and not _LETTER.fullmatch(letter):
        letter, names = "", text
    dtypes = tuple(
        spelling
        for name in filter(None, names.split("|"))
        for spelling in CLASSES.get(name) or (_spelling(name),)
    )
    if letter:
        letters.setdefault(letter, dtypes)
        dtypes = dtypes or letters[letter]
    return letter, dtypes


def _spelling(name: str) -> str:
    """Return the profilers' name of a dtype, also of `float32` and `fp32`; a class of many and a
    letter are their own."""
    if name in _WIDE or _LETTER.fullmatch(name):
        return name
    if known := dtype_of(name) or torch_dtype_of(name):
        return known.spelling
    classes = ", ".join((*CLASSES, *_WIDE))
    raise BadInput(f"signature: expected a dtype (bf16, INT32), or one of {classes}, got {name!r}")


def _groups_of(tensor: Tensor) -> set[str]:
    return {dim.group for dim in tensor.dims or () if dim.group}


def _optional(sides: Iterable[Sequence[Tensor]]) -> frozenset[int]:
    return frozenset(at for side in sides for at, one in enumerate(side) if one.is_optional)


class _Reading:
    """The names that the tensors of one case have defined so far."""

    def __init__(self, variant: Variant) -> None:
        self._names = dict(variant.presence)
        self._groups: dict[str, Shape] = {}
        self._joined: dict[str, list[Shape]] = {}
        self._dtypes: dict[str, str] = {}
        self._split: list[tuple[str, Tensor, Slot]] = []
        self._blocks: list[tuple[str, Tensor, Slot]] = []
        self._computed: list[tuple[str, Tensor, Expression, int, int]] = []
        self.fitting = 0

    @property
    def sizes(self) -> Sizes:
        sizes = dict(self._names)
        for name, shape in self._groups.items():
            sizes[name], sizes[name + _RANK] = prod(shape), len(shape)
        return sizes

    def read_sides(self, variant: Variant, case: Case) -> str:
        """Read all plain tensors; return what is wrong with the first that does not fit."""
        return (
            self.read("input", variant.inputs, case.inputs or ())
            or self.join()
            or self.read("output", variant.outputs, case.outputs or ())
        )

    def read(self, side: str, tensors: Sequence[Tensor], slots: Sequence[Slot]) -> str:
        """Read the tensors of a side; return what is wrong with the first that does not fit."""
        repeated = repeat(tensors[-1]) if tensors and tensors[-1].repeats else ()
        for tensor, slot in zip(chain(tensors, repeated), slots, strict=False):
            if tensor.plain is not None and self._fits_plainly(tensor, slot):
                self.fitting += 1
                continue
            is_absent = slot.shape is None and tensor.is_optional
            if tensor.is_refused and not is_absent:
                return f"{side} '{tensor.name}' is not replayed: expected no tensor"
            if tensor.is_optional and not is_absent:
                self._names[_HAS + tensor.name] = 1
            # An absent tensor may have any dtype in a row, but an empty cell may be a number.
            complaint = ""
            if not is_absent or tensor.is_number:
                complaint = self._read_dtype(side, tensor, slot)
            if not is_absent:
                complaint = complaint or self._read_shape(side, tensor, slot)
            if complaint:
                return complaint
            self.fitting += 1
        for tensor in tensors[len(slots) :]:
            if tensor.is_recorded or not (tensor.is_optional or side == "output"):
                return f"{side} '{tensor.name}': expected a tensor, got none"
        return ""

    def _fits_plainly(self, tensor: Tensor, slot: Slot) -> bool:
        """Return whether a tensor fits that has only names: the usual case, read in less time."""
        dtype, shape = slot.dtype, slot.shape
        if (shape is None and tensor.is_optional) or plain_format(slot.format) != "ND":
            return False
        if tensor.dtypes and dtype not in tensor.accepted:
            return False
        if tensor.letter and not tensor.dtypes:
            dtype = slot.known_dtype.spelling if slot.known_dtype else ""
        if tensor.letter and self._dtypes.setdefault(tensor.letter, dtype) != dtype:
            return False
        shape = shape or ()
        names, (group, first, last) = self._names, tensor.plain or (None, (), ())
        end = len(shape) - len(last)
        if end != len(first) if group is None else end < len(first):
            return False
        for name, size in zip(first, shape, strict=False):
            if names.setdefault(name, size) != size:
                return False
        for name, size in zip(last, shape[end:], strict=True):
            if names.setdefault(name, size) != size:
                return False
        if group is not None and self._read_group("", tensor, group.text, shape[len(first) : end]):
            return False
        if tensor.is_optional:
            names[_HAS + tensor.name] = 1
        return True

    def join(self) -> str:
        """Define the groups to which tensors broadcast, and those that need others."""
        for name, shapes in self._joined.items():
            found = broadcast(*shapes)
            if found is None:
                return f"expected shapes that broadcast, got {' and '.join(map(_text, shapes))}"
            self._groups[name] = found
        for side, tensor, slot in self._split:
            if complaint := self._read_forms(side, tensor, slot):
                return complaint
        return ""

    def finish(self, conditions: Iterable[Expression]) -> str:
        """Read matrices in blocks, computed sizes and conditions, which need others' names."""
        for side, tensor, slot in self._blocks:
            if complaint := self._read_forms(side, tensor, slot):
                return complaint
        if not self._computed and not conditions:
            return ""
        sizes = self.sizes
        for side, tensor, dim, size, block in self._computed:
            if dim.names <= sizes.keys() and align(dim.compute(sizes), block) != size:
                return _mismatch(side, tensor, f"{dim.text} = {_text(dim.compute(sizes))}", size)
        for condition in conditions:
            if condition.names <= sizes.keys() and not condition.compute(sizes):
                values = ", ".join(
                    f"{name} = {_text(sizes[name])}" for name in sorted(condition.names)
                )
                return f"expected {condition.text}, got {values}"
        return ""

    def _read_dtype(self, side: str, tensor: Tensor, slot: Slot) -> str:
        known = slot.known_dtype
        if known is None:
            return ""  # named by the check of slots
        if tensor.dtypes and known.spelling not in tensor.accepted:
            dtypes = dict.fromkeys(self._dtypes.get(name, name) for name in tensor.dtypes)
            if known.spelling not in dtypes:
                texts = (_WIDE[name][0] if name in _WIDE else name for name in dtypes)
                expected = " or ".join(texts)
                return f"{side} '{tensor.name}': expected {expected}, got {known.spelling}"
        first = self._dtypes.setdefault(tensor.letter, known.spelling) if tensor.letter else ""
        if first and first != known.spelling:
            return f"{side} '{tensor.name}': expected {first}, got {known.spelling}"
        return ""

    def _read_shape(self, side: str, tensor: Tensor, slot: Slot) -> str:
        if tensor.dims is None:
            is_wrong = tensor.is_number and slot.shape not in (None, (), (1,))
            got = _text(slot.shape or ()) if is_wrong else ""
            return f"{side} '{tensor.name}': expected one number, got {got}" if is_wrong else ""
        if slot.format == FRACTAL_NZ and slot.shape and len(slot.shape) >= 4:
            if slot.known_dtype and slot.shape[-2:] != (block := block_of(slot.known_dtype)):
                return _mismatch(side, tensor, f"blocks of {_text(block)}", slot.shape[-2:])
            self._blocks.append((side, tensor, slot))
            return ""
        if tensor.is_split and side == "input":
            self._split.append((side, tensor, slot))
            return ""
        return self._read_forms(side, tensor, slot)

    def _read_forms(self, side: str, tensor: Tensor, slot: Slot) -> str:
        shape, computed = logical_shape(slot), len(self._computed)
        complaint = self._read_dims(side, tensor, slot, shape)
        for other in tensor.others if complaint else ():
            del self._computed[computed:]
            if not self._read_dims(side, other, slot, shape):
                return ""
        if complaint and tensor.others:
            return f"{side} '{tensor.name}': expected [{tensor.text}], got {_text(shape)}"
        return complaint

    def _read_dims(self, side: str, tensor: Tensor, slot: Slot, shape: Shape) -> str:
        dims, at = (
            self._known_dims(tensor) if tensor.is_split else (tensor.dims or (), tensor.group)
        )
        if at is None:
            fits = len(shape) == len(dims)
        elif fits := len(shape) >= len(dims) - 1:
            end = len(shape) - (len(dims) - 1 - at)
            if complaint := self._read_group(side, tensor, dims[at].text, shape[at:end]):
                return complaint
            dims, shape = (*dims[:at], *dims[at + 1 :]), (*shape[:at], *shape[end:])
        if not fits:
            return _mismatch(side, tensor, f"[{tensor.text}]", shape)
        names = self._names
        for position, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if dim.computed is not None:
                block = _block_of(slot, position - len(shape))
                self._computed.append((side, tensor, dim.computed, size, block))
                continue
            expected = dim.size if dim.size is not None else names.setdefault(dim.name, size)
            if size != expected and size != align(expected, _block_of(slot, position - len(shape))):
                named = "" if dim.text.isdecimal() else f"{dim.text} = "
                return _mismatch(side, tensor, f"{named}{_text(expected)}", size)
        return ""

    def _known_dims(self, tensor: Tensor) -> tuple[tuple[Dim, ...], int | None]:
        """Return the dimensions with the sizes of groups that are known, and the place of the one
        that is not."""
        dims: list[Dim] = []
        unknown = None
        for dim in tensor.dims or ():
            known = self._groups.get(dim.group or dim.ones)
            if known is None:
                unknown = unknown if dim.group is None else len(dims)
                dims.append(dim)
            else:
                dims += [_sized(dim.text, 1 if dim.ones else size) for size in known]
        return tuple(dims), unknown

    def _read_group(self, side: str, tensor: Tensor, group: str, shape: Shape) -> str:
        mark, name = group[0], group[1:]
        if mark == "&":
            if name in self._groups:  # of an output
                return ""
            self._joined.setdefault(name, []).append(shape)
        elif name and self._groups.setdefault(name, shape) != shape:
            return _mismatch(side, tensor, f"{_text(self._groups[name])} for {group}", shape)
        return ""


@lru_cache(maxsize=1024)
def _sized(text: str, size: int) -> Dim:
    return Dim(text, size)


def _mismatch(side: str, tensor: Tensor, expected: str, got: int | Shape) -> str:
    return f"{side} '{tensor.name}' [{tensor.text}]: expected {expected}, got {_text(got)}"


def _text(found: int | Shape) -> str:
    """Return a size or a shape; sizes of many cases, which are no integers, have no text."""
    if isinstance(found, tuple):
        return f"[{','.join(map(_text, found))}]"
    return str(found) if isinstance(found, int) else "..."


def _block_of(slot: Slot, at: int) -> int:
    """Return the number to which a size is rounded up; `at` counts from the end. Only the last two
    sizes of a matrix in blocks have more than 1."""
    is_rounded = slot.format == FRACTAL_NZ and len(slot.shape or ()) >= 4 and at >= -2
    return (slot.shape or ())[at] if is_rounded else 1


def variable_names(signature: Signature) -> frozenset[str]:
    """Return the names that `Signature.sizes` may define."""
    found = {name for variant in signature.variants for name in variant.presence}
    for variant in signature.variants:
        for tensor in (*variant.inputs, *variant.outputs):
            groups = _groups_of(tensor)
            found |= groups | {name + _RANK for name in groups}
            for dim in tensor.dims or ():
                found |= dim.computed.names if dim.computed else {dim.name or dim.ones}
    return frozenset(found - {""})
