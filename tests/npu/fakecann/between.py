"""The conversions of CANN between a call and its kernel, if a test requests them.

aclnn may cast, transpose or split its arguments, or choose another kernel; the call is the same,
and only the rows of the profile show it. Each entry of BETWEEN turns one launch into those that the
device saw; unaffected launches stay one.

    casts         inputs of 16 bits become FLOAT in a preceding Cast, outputs in a following one
    transposes    the first input is transposed in a separate kernel
    turned_scatter  of another dimension than the last: all is transposed first, and indices
                  become INT32 (aclnn_scatter.cpp of ops-nn)
    splits        two launches of half of the rows each
    sort_in_float CANN sorts BF16 as FLOAT (aclnn_sort.cpp of ops-math)
    sorted_put    IndexPutV2 sorts its indices, as INT32, before it puts
    mul_for_k1    a product over one element is an outer product, and Mul computes it
    wide_concat   ConcatD takes 32 inputs at once, so that more are several launches
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from collector.engine.calls import Recorded
from collector.engine.cells import cells_of
from tests.npu.fakecann.truth import truth_us

_IN_SHAPES, _IN_DTYPES, _IN_FORMATS = "Input Shapes", "Input Data Types", "Input Formats"
_OUT_SHAPES, _OUT_DTYPES = "Output Shapes", "Output Data Types"
_NARROW = ("DT_BF16", "FLOAT16")
_WIDEST_CONCAT = 32
Cells = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the launches of a call."""

    kernel: str
    cells: Cells

    def duration_us(self, call: Recorded) -> float:
        """Return a duration that follows from the call, this kernel and these cells."""
        return truth_us(call, f"{self.kernel}|{sorted(self.cells.items())}")


def parts_of(name: str, call: Recorded, kernel: str) -> Sequence[Part]:
    """Return the launches of a call; none if the behaviour does not apply to it."""
    cells = cells_of(call)
    return BETWEEN[name](kernel, cells) if _IN_SHAPES in cells and _OUT_SHAPES in cells else ()


def is_struck(name: str, call: Recorded, share: float) -> bool:
    """Return whether a behaviour applies to a call, of which it affects this share: always the same
    ones, and never a mark."""
    if call.name == "aclnnNeg":
        return False
    digest = hashlib.sha256(f"{name}|{call.text}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def _casts(kernel: str, cells: Cells) -> Sequence[Part]:
    dtypes = cells[_IN_DTYPES].split(";")
    if kernel == "Cast" or not dtypes or dtypes[0] not in _NARROW:
        return ()
    return _in_float(kernel, cells)


def _in_float(kernel: str, cells: Cells) -> Sequence[Part]:
    """Return Cast, the kernel in FLOAT, and Cast back."""
    shape, dtype = _slot(cells[_IN_SHAPES], 0), cells[_IN_DTYPES].split(";")[0]
    wide = {
        name: ";".join("FLOAT" if d in _NARROW else d for d in cells[name].split(";"))
        for name in (_IN_DTYPES, _OUT_DTYPES)
    }
    there = Part("Cast", _one(shape, dtype, shape, "FLOAT"))
    out = _slot(cells[_OUT_SHAPES], 0)
    back = Part("Cast", _one(out, "FLOAT", out, dtype))
    return there, Part(kernel, {**cells, **wide}), back


def _transposes(kernel: str, cells: Cells) -> Sequence[Part]:
    shape = _slot(cells[_IN_SHAPES], 0).split(",")
    if kernel == "Transpose" or len(set(shape)) < 2:
        return ()
    dtype = cells[_IN_DTYPES].split(";")[0]
    turned = ",".join(reversed(shape))
    moved = Part("Transpose", _one(",".join(shape), dtype, turned, dtype))
    return moved, Part(kernel, {**cells, _IN_SHAPES: _with(cells[_IN_SHAPES], turned)})


def _turned_scatter(kernel: str, cells: Cells) -> Sequence[Part]:
    if kernel != "ScatterElementsV2":
        return ()
    shapes = cells[_IN_SHAPES].strip('"').split(";")
    dtypes = cells[_IN_DTYPES].split(";")
    turned = [",".join(reversed(shape.split(","))) for shape in shapes]
    narrow = [dtypes[0], "INT32", *dtypes[2:]]
    index, out = shapes[1], _slot(cells[_OUT_SHAPES], 0)
    pairs = zip(shapes, turned, narrow, strict=True)
    scattered = {
        **cells,
        _IN_SHAPES: f'"{";".join(turned)}"',
        _IN_DTYPES: ";".join(narrow),
        _OUT_SHAPES: f'"{turned[0]}"',
    }
    return (
        Part("Cast", _one(index, dtypes[1], index, "INT32")),
        *(Part("Transpose", _one(shape, dtype, end, dtype)) for shape, end, dtype in pairs),
        Part(kernel, scattered),
        Part("Transpose", _one(turned[0], dtypes[0], out, dtypes[0])),
    )


def _splits(kernel: str, cells: Cells) -> Sequence[Part]:
    rows, *others = _slot(cells[_IN_SHAPES], 0).split(",")
    if not rows or int(rows) < 2:
        return ()
    half = ",".join((str(int(rows) // 2), *others))
    part = Part(kernel, {**cells, _IN_SHAPES: _with(cells[_IN_SHAPES], half)})
    return part, part


def _sort_in_float(kernel: str, cells: Cells) -> Sequence[Part]:
    is_bf16 = cells[_IN_DTYPES].split(";")[0] == "DT_BF16"
    return _in_float(kernel, cells) if kernel == "Sort" and is_bf16 else ()


def _sorted_put(kernel: str, cells: Cells) -> Sequence[Part]:
    dtypes = cells[_IN_DTYPES].split(";")
    if kernel != "IndexPutV2" or dtypes[-1] != "INT64":
        return ()
    shape = cells[_IN_SHAPES].strip('"').split(";")[-1]
    narrow = {**cells, _IN_DTYPES: ";".join((*dtypes[:-1], "INT32"))}
    cast, sort = _one(shape, "INT64", shape, "INT32"), _one(shape, "INT32", shape, "INT32")
    return Part("Cast", cast), Part("Sort", sort), Part(kernel, narrow)


def _mul_for_k1(kernel: str, cells: Cells) -> Sequence[Part]:
    rows, columns = (_slot(cells[_IN_SHAPES], i).split(",") for i in (0, 1))
    is_outer = kernel.startswith("MatMul") and rows[-1:] == ["1"] and "1" in columns
    return (Part("Mul", cells),) if is_outer else ()


def _wide_concat(kernel: str, cells: Cells) -> Sequence[Part]:
    shapes = cells[_IN_SHAPES].strip('"').split(";")
    if kernel != "ConcatD" or len(shapes) <= _WIDEST_CONCAT:
        return ()
    pieces = [shapes[i : i + _WIDEST_CONCAT] for i in range(0, len(shapes), _WIDEST_CONCAT)]
    dtype, format = (cells[name].split(";")[0] for name in (_IN_DTYPES, _IN_FORMATS))
    return [
        Part(
            kernel,
            {
                **cells,
                _IN_SHAPES: f'"{";".join(piece)}"',
                _IN_DTYPES: ";".join([dtype] * len(piece)),
                _IN_FORMATS: ";".join([format] * len(piece)),
            },
        )
        for piece in pieces
    ]


def _slot(cell: str, number: int) -> str:
    slots = cell.strip('"').split(";")
    return slots[number] if number < len(slots) else ""


def _with(cell: str, first: str) -> str:
    return f'"{";".join((first, *cell.strip(chr(34)).split(";")[1:]))}"'


def _one(shape: str, dtype: str, out: str, out_dtype: str) -> Cells:
    """Return the cells of a kernel with one input and one output."""
    return {
        _IN_SHAPES: f'"{shape}"',
        _IN_DTYPES: dtype,
        _IN_FORMATS: "ND",
        _OUT_SHAPES: f'"{out}"',
        _OUT_DTYPES: out_dtype,
        "Output Formats": "ND",
    }


BETWEEN: Mapping[str, Callable[[str, Cells], Sequence[Part]]] = MappingProxyType(
    {
        "casts": _casts,
        "transposes": _transposes,
        "turned_scatter": _turned_scatter,
        "splits": _splits,
        "sort_in_float": _sort_in_float,
        "sorted_put": _sorted_put,
        "mul_for_k1": _mul_for_k1,
        "wide_concat": _wide_concat,
    }
)
