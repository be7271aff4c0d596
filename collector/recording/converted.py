"""What CANN launches around kernels whose operands lie in blocks: those of images, and products of
matrices that it reads badly where they are plain.

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
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from collector.recording.calls import DTYPES, Recorded, RecordedTensor, parse_call

_SHORT = {spelling: short for short, spelling in DTYPES.items()}
_BITS = {"FLOAT": 32, "FLOAT16": 16, "DT_BF16": 16}
_OF_16_BITS = frozenset({"FLOAT16", "DT_BF16"})
_ROWS = 16
_LEAST, _LONG = 128, 65_535  # numbers in a row that is read well
_MASK_BYTES = 32  # of a block in the mask that aclnn hands out as bytes


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
    if call.name not in _BECOMES:
        return ()
    return tuple(parse_call(f"ACLOP {text}") for text in _BECOMES[call.name](call.tensors))


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
