"""What CANN launches around a kernel: conversions into blocks of the operands of images and of
matrices that it reads badly where they are plain, and into the dtype that it computes in.

A convolution that is given plain tensors becomes TransData of each operand, the kernel, and
TransData of its result; pooling the same, in blocks of 16 channels whose format has `:1` behind its
name. Both as the profile of a real training step of 2025 has them (A2, float32), but for the MemSet
before the gradient of a filter, of which a profile records no tensors.

    ACLOP Conv2D(f32[2,3,7,7]:NCHW, f32[8,3,3,3]:NCHW -> f32[2,8,5,5]:NCHW, ...)
        TransData  2,3,7,7 NCHW                    -> 2,1,7,7,8 NC1HWC0
        TransData  8,3,3,3 NCHW                    -> 9,1,16,8 FRACTAL_Z
        Conv2D     2,1,7,7,8;9,1,16,8              -> 2,1,5,5,8 NC1HWC0
        TransData  2,1,5,5,8 NC1HWC0               -> 2,8,5,5 NCHW

A product of 16 bits becomes TransData of both operands, MatMulV2 and TransData of the result where
`IsNdToNzOnTheFly` of CANN's open sources (ops-nn) says so: not where both operands are small, k is
1, or each has rows in memory of 128 to 65,535 numbers, or of fewer in multiples of 16.

A sum or a running sum in a wider dtype becomes a Cast and the kernel; so does an operation with a
number of the host that is of a higher kind than the tensor, and arithmetic of two dtypes of
integers or truth values. A view is copied before a Cast, and by up to three kernels: Slice cuts it
out of its memory, Transpose orders it, and BroadcastTo repeats it. The remainder of a number begins
with a BroadcastTo of the number, and so does what is written to indices with a value of another
shape. A multiple that is added is a Mul before the Add, where Axpy does not compute in the dtype.
All as CANN's open sources (ops-math, ops-nn) have them for A2 and A3.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from types import MappingProxyType

from collector.engine.calls import DTYPES, Recorded, RecordedTensor, parse_call
from collector.engine.kernels import kernel_of
from collector.engine.views import dense_steps

_SHORT = {spelling: short for short, spelling in DTYPES.items()}
_BITS = {"FLOAT": 32, "FLOAT16": 16, "DT_BF16": 16}
_OF_16_BITS = frozenset({"FLOAT16", "DT_BF16"})
_ROWS = 16
_LEAST, _LONG = 128, 65_535  # numbers in a row that is read well
_MASK_BYTES = 32  # of a block in the mask that aclnn hands out as bytes
_CUT = 2**24  # truth values from which a sum is not computed in FLOAT
_INTEGERS = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64")  # by rank
_INTEGER = re.compile(r"-?\d+")
_RUN = 1024  # elements behind an index that is not the first; of fewer CANN transposes
_CALL = "ACLNN "
# Calls with a number of the host, and arithmetic of two tensors.
_OF_NUMBERS = (
    *("aclnnAdds", "aclnnSubs", "aclnnMuls", "aclnnFloorDivides", "aclnnEqScalar"),
    *("aclnnNeScalar", "aclnnGtScalar", "aclnnRemainderTensorScalar"),
)
_ARITHMETIC = (
    *("aclnnAdd", "aclnnInplaceAdd", "aclnnSub", "aclnnInplaceSub", "aclnnMul", "aclnnInplaceMul"),
)


def kernels_of(call: Recorded) -> tuple[Recorded, ...]:
    """The launches that a call becomes on the device: itself, where nothing else is known."""
    became = _became(call.text)
    return tuple(
        replace(kernel, ns=call.ns, device=call.device, stream=call.stream)
        for kernel in became or (call,)
    )


@lru_cache(maxsize=4096)
def _became(text: str) -> tuple[Recorded, ...]:
    call = parse_call(text)
    if call.name in _PROMOTES:
        texts = _PROMOTES[call.name](call)
    elif call.name in _BECOMES:
        texts = _BECOMES[call.name](call.tensors)
    else:
        return ()
    return tuple(parse_call(text if text.startswith(_CALL) else f"ACLOP {text}") for text in texts)


def _conv(tensors: Sequence[RecordedTensor]) -> Sequence[str]:
    x, w, *bias, y = tensors
    operands = (_image(x), _filter(w), *map(_plain, bias))
    return _around("Conv2D", {0: x, 1: w}, operands, y, _image(y))


def _conv_input(tensors: Sequence[RecordedTensor]) -> Sequence[str]:
    size, w, dy, dx = tensors
    operands = (_plain(size), _filter(w), _image(dy))
    return _around("Conv2DBackpropInput", {1: w, 2: dy}, operands, dx, _image(dx))


def _conv_filter(tensors: Sequence[RecordedTensor]) -> Sequence[str]:
    x, size, dy, dw = tensors
    operands = (_image(x), _plain(size), _image(dy))
    return _around("Conv2DBackpropFilter", {0: x, 2: dy}, operands, dw, _filter(dw))


def _pool(tensors: Sequence[RecordedTensor]) -> Sequence[str]:
    x, y, mask = tensors
    n, c, area, wide = mask.shape
    bits = f"u16[{n},{-(-c // _ROWS)},{area},{wide // _MASK_BYTES},{_ROWS}]:NC1HWC0:1"
    blocked = f"{_image(y, 1)}, {_lying(bits)}"
    *rest, _ = _around("MaxPoolWithArgmaxV1", {0: x}, (_image(x, 1),), y, blocked)
    return *rest, f"TransData({_image(y, 1)} -> {_plain(y)})"


def _pool_gradient(tensors: Sequence[RecordedTensor]) -> Sequence[str]:
    dy, x, mask, dx = tensors
    n, c, area, wide = mask.shape
    bits = _lying(f"u16[{n},{c},{area},{area},{wide // _MASK_BYTES},{_ROWS}]:NC1HWC0")
    operands = (_image(x, 1), _image(dy, 1), bits)
    return _around("MaxPoolGradWithArgmaxV1", {0: x, 1: dy}, operands, dx, _image(dx, 1))


def _product(tensors: Sequence[RecordedTensor]) -> Sequence[str]:
    a, b, out = tensors
    stored = [_stored(tensor) for tensor in (a, b)]
    is_small = all(rows * inner <= _LONG for rows, inner in stored)
    is_read_well = all(_LEAST <= i <= _LONG or (i < _LEAST and i % _ROWS == 0) for _, i in stored)
    if a.dtype not in _OF_16_BITS or is_small or is_read_well or a.shape[-1] == 1:
        return ()
    plain = [
        f"{_SHORT[t.dtype]}[{_text(shape)}]:ND" for t, shape in zip((a, b), stored, strict=True)
    ]
    blocked = [_blocks(t.dtype, shape) for t, shape in zip((a, b), stored, strict=True)]
    result = _blocks(out.dtype, out.shape)
    return (
        *(f"TransData({one} -> {other})" for one, other in zip(plain, blocked, strict=True)),
        f"MatMulV2({', '.join(blocked)} -> {result})",
        f"TransData({result} -> {_plain(out)})",
    )


def _stored(tensor: RecordedTensor) -> tuple[int, int]:
    """Rows in memory, and the numbers in each."""
    rows, inner = tensor.shape
    return (inner, rows) if not tensor.is_dense else (rows, inner)


def _blocks(dtype: str, shape: Sequence[int]) -> str:
    rows, columns = (-(-size // _ROWS) for size in shape)
    storage = _text((columns, rows, _ROWS, _ROWS))
    return f"{_SHORT[dtype]}[{_text(shape)}]:FRACTAL_NZ<{storage}>"


def _mixed(call: Recorded) -> Sequence[str]:
    """Arithmetic of two dtypes of integers or truth values, in the wider one."""
    x, y, *outputs = call.tensors
    kernel, out = kernel_of(call), (outputs or [x])[0]
    known = x.dtype in _INTEGERS and y.dtype in _INTEGERS and out.dtype in _INTEGERS
    is_mixed = x.dtype != y.dtype and {x.dtype, y.dtype} != {"UINT8", "INT8"}
    if not known or not is_mixed or (kernel != "Mul" and call.number(2) != 1):
        return _scaled(call) if call.name == "aclnnAdd" else ()
    computed = max(x.dtype, y.dtype, key=_INTEGERS.index)
    operands = [replace(tensor, dtype=computed) for tensor in (x, y)]
    casts = [
        step
        for tensor, text, operand in zip((x, y), call.arguments, operands, strict=False)
        for step in (*_copied(tensor, text), f"Cast({_plain(tensor)} -> {_plain(operand)})")
        if tensor.dtype != computed
    ]
    result = replace(out, dtype=computed)
    behind = [f"Cast({_plain(result)} -> {_plain(out)})"] if out.dtype != computed else []
    return *casts, f"{kernel}({', '.join(map(_plain, operands))} -> {_plain(result)})", *behind


def _copied(view: RecordedTensor, text: str) -> Sequence[str]:
    """The copy that makes a view dense."""
    if view.is_dense:
        return ()
    return _steps(view) or [f"{_CALL}aclnnInplaceCopy({_plain(view)}, {text})"]


def _steps(view: RecordedTensor) -> Sequence[str]:
    """The kernels that make a view dense, if they are several and known. Truth values are repeated
    as INT32."""
    steps = dense_steps(view)
    is_cast = view.dtype == "BOOL" and steps[-1].kernel == "BroadcastTo"
    if not all(step.after for step in steps) or (len(steps) < 2 and not is_cast):
        return ()
    texts: list[str] = []
    for step in steps:
        is_last = is_cast and step is steps[-1]
        dtype = "INT32" if is_last else view.dtype
        x, out = (_shaped(view, dtype, shape) for shape in (step.before, step.after))
        if is_last:
            texts.append(f"Cast({_shaped(view, view.dtype, step.before)} -> {x})")
        lists = f", i64[{len(step.after)}]:ND" * (2 if step.kernel == "Slice" else 1)
        texts.append(f"{step.kernel}({x}{lists} -> {out})")
        if is_last:
            texts.append(f"Cast({out} -> {_shaped(view, view.dtype, step.after)})")
    return texts


def _shaped(tensor: RecordedTensor, dtype: str, shape: Sequence[int]) -> str:
    return f"{_SHORT[dtype]}[{_text(shape)}]:{tensor.format}"


def _cast(call: Recorded) -> Sequence[str]:
    """A copy of a view in another dtype: a copy, and a Cast. In the same dtype it is what makes the
    view dense."""
    target, source = call.tensors
    if source.is_dense or not target.is_dense or target.shape != source.shape:
        return ()
    if target.dtype == source.dtype:
        return _steps(source)
    dense = replace(source, strides=target.strides)
    return *_copied(source, call.arguments[1]), f"Cast({_plain(dense)} -> {_plain(target)})"


def _put(call: Recorded) -> Sequence[str]:
    """Values of another shape than their indices select are spread before they are written."""
    x, value = call.tensors[0], call.tensors[-1]
    listed = call.tensors[1:-1]
    indices = [index for index in listed if index.storage != (0,)]
    kept, end = len(listed) - len(indices), len(listed)
    if not indices or any(index.storage == (0,) for index in listed[kept:]):
        return ()
    selected = (*x.shape[:kept], *indices[0].shape, *x.shape[end:])
    is_run = not kept or prod(x.shape[end:]) >= _RUN
    is_one_shape = all(index.shape == indices[0].shape for index in indices)
    if value.shape == selected or not (x.is_dense and value.is_dense and is_run and is_one_shape):
        return ()
    ones = (1,) * (len(selected) - len(value.shape))
    given = f"{_SHORT[value.dtype]}[{_text((*ones, *value.shape))}]:ND"
    spread = f"{_SHORT[value.dtype]}[{_text(selected)}]:ND"
    written = (*call.arguments[:2], spread, *call.arguments[3:])
    return (
        f"BroadcastTo({given}, i64[{len(selected)}]:ND -> {spread})",
        f"{_CALL}{call.name}({', '.join(written)})",
    )


def _scaled(call: Recorded) -> Sequence[str]:
    """A sum with a multiple of the second tensor, in dtypes that Axpy does not compute."""
    x, y, out = call.tensors
    if call.number(2) == 1 or kernel_of(call) != "Add" or not (x.dtype == y.dtype == out.dtype):
        return ()
    multiple = f"Mul({_plain(y)}, {_SHORT[y.dtype]}[]:ND -> {_plain(y)})"
    return multiple, f"Add({_plain(x)}, {_plain(y)} -> {_plain(out)})"


def _summed(call: Recorded) -> Sequence[str]:
    """A sum in another dtype; of truth values in FLOAT, which is exact up to 2^24."""
    x, out = call.tensors
    listed = _INTEGER.findall(call.arguments[1])
    dims = [int(one) for one in listed] or range(len(x.shape))
    computed = out.dtype
    if (x.dtype, computed) == ("BOOL", "INT64") and prod(x.shape[i] for i in dims) < _CUT:
        computed = "FLOAT"
    if not x.shape or x.dtype == out.dtype:
        return ()
    steps = _computed("ReduceSum", x, f"i64[{len(dims)}]:ND", computed, out)
    return *_copied(x, call.arguments[0]), *steps


def _summed_up_to(call: Recorded) -> Sequence[str]:
    """A running sum in another dtype."""
    x, out = call.tensors
    if x.dtype == out.dtype or out.dtype not in _INTEGERS:
        return ()
    axis = "i64[1]:ND" if call.arguments[1] == "0" else "i32[1]:ND"
    return *_copied(x, call.arguments[0]), *_computed("Cumsum", x, axis, out.dtype, out)


def _with_number(call: Recorded) -> Sequence[str]:
    """An operation of a tensor and a number of the host, in the dtype that CANN promotes them to.

    It compares an INT32 with an INT64 in INT64; other operations are in the dtype of the tensor,
    unless the number is of a higher kind."""
    (x, out), number = call.tensors, DTYPES.get(call.arguments[1].partition("=")[0], "")
    kernel, computed = kernel_of(call), x.dtype
    if x.dtype in _INTEGERS and number not in _INTEGERS:
        computed = number if out.dtype == "BOOL" else out.dtype
    elif x.dtype in _INTEGERS and (x.dtype == "BOOL" or kernel == "Greater"):
        computed = max(x.dtype, number, key=_INTEGERS.index)
    if computed not in _SHORT:
        return ()
    scalar, copied = f"{_SHORT[computed]}[]:ND", _copied(x, call.arguments[0])
    if kernel != "FloorMod":
        steps = _computed(kernel, x, scalar, computed, out)
        return () if computed == x.dtype else (*copied, *steps)
    shape = x.shape or (1,)
    spread = f"{_SHORT[computed]}[{_text(shape)}]:ND"
    steps = list(_computed(kernel, x, spread, computed, out))
    at = next(i for i, step in enumerate(steps) if step.startswith(kernel))
    steps.insert(at, f"BroadcastTo({scalar}, i64[{len(shape)}]:ND -> {spread})")
    return *copied, *steps


def _computed(
    kernel: str, x: RecordedTensor, other: str, computed: str, out: RecordedTensor
) -> Sequence[str]:
    """The kernel in a dtype, after a Cast of its tensor and before one of its result, where these
    have others. A comparison writes BOOL."""
    operand = replace(x, dtype=computed)
    result = replace(out, dtype="BOOL" if out.dtype == "BOOL" else computed)
    before = [f"Cast({_plain(x)} -> {_plain(operand)})"] if x.dtype != computed else []
    behind = [f"Cast({_plain(result)} -> {_plain(out)})"] if out.dtype != result.dtype else []
    return *before, f"{kernel}({_plain(operand)}, {other} -> {_plain(result)})", *behind


_PROMOTES: Mapping[str, Callable[[Recorded], Sequence[str]]] = MappingProxyType(
    {
        **dict.fromkeys(_ARITHMETIC, _mixed),
        "aclnnInplaceCopy": _cast,
        "aclnnIndexPutImpl": _put,
        "aclnnReduceSum": _summed,
        "aclnnCumsum": _summed_up_to,
        **dict.fromkeys(_OF_NUMBERS, _with_number),
    }
)
_BECOMES: Mapping[str, Callable[[Sequence[RecordedTensor]], Sequence[str]]] = MappingProxyType(
    {
        "aclnnMm": _product,
        "Conv2D": _conv,
        "Conv2DBackpropInput": _conv_input,
        "Conv2DBackpropFilter": _conv_filter,
        "aclnnMaxPool2dWithMask": _pool,
        "aclnnMaxPool2dWithMaskBackward": _pool_gradient,
    }
)


def _around(
    kernel: str,
    plain: Mapping[int, RecordedTensor],
    operands: Sequence[str],
    result: RecordedTensor,
    blocked: str,
) -> Sequence[str]:
    """Conversions of the operands that are plain, the kernel, and that of its result, unless
    torch_npu keeps that in blocks (FLOAT16)."""
    there = [
        f"TransData({_plain(tensor)} -> {operands[i]})"
        for i, tensor in plain.items()
        if tensor.format == "NCHW"
    ]
    back = [f"TransData({blocked} -> {_plain(result)})"] if result.format == "NCHW" else []
    return *there, f"{kernel}({', '.join(operands)} -> {blocked})", *back


def _plain(tensor: RecordedTensor) -> str:
    return f"{_SHORT[tensor.dtype]}[{_text(tensor.shape)}]:{tensor.format}"


def _image(tensor: RecordedTensor, groups: int = 0) -> str:
    """In NC1HWC0; that of pooling has its groups."""
    n, c, h, w = tensor.shape
    width = _ROWS if groups else 256 // _BITS[tensor.dtype]
    format = f"NC1HWC0:{groups}" if groups else "NC1HWC0"
    storage = _text((n, -(-c // width), h, w, width))
    return f"{_SHORT[tensor.dtype]}[{_text(tensor.shape)}]:{format}<{storage}>"


def _filter(tensor: RecordedTensor) -> str:
    n, c, kh, kw = tensor.shape
    width = 256 // _BITS[tensor.dtype]
    storage = _text((-(-c // width) * kh * kw, -(-n // _ROWS), _ROWS, width))
    return f"{_SHORT[tensor.dtype]}[{_text(tensor.shape)}]:FRACTAL_Z<{storage}>"


def _lying(text: str) -> str:
    """A tensor of a private format that is written as it is stored."""
    return f"{text}<{text[text.index('[') + 1 : text.index(']')]}>"


def _text(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))
