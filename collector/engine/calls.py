"""Reads the log that the fake CANN writes: one line a launch, in the order of the stream.

    {ns} {device} {stream} {KIND} {name}({arguments}; {numbers})

ns         time of day; with FAKE_NPU_ORDER=1 the processor time of the host so far
KIND       ACLNN (aclnn... and Atb... calls), ACLOP (a GE type), ATB (an operation of ATB, without
           its parameters), HCCL, CUSTOM (a kernel that a test registered); HOST, what launches
           nothing: graphs, and with FAKE_NPU_ORDER=1 copies, events and synchronisation
arguments  separated by `, `, in the order of the C function, outputs included:
           bf16[4,2]:ND      a dense tensor: dtype, view shape, format; where it is not that,
                             `/8,1` strides, `+2` offset, `<4,2,16,16>` storage shape (of a plain
                             format: its number of elements) follow
           {..., ...}        a list of tensors
           f32=1.5           a scalar object with its dtype
           ints(1,2) floats(0.5) bools(1,0) scalars(i64=1,i64=2)
                             arrays; of more than 64 values the rest is counted: `,+936`
           "BNSD" 8 0        text and numbers; 0 is also an absent tensor
           a -> b            of ACLOP and ATB: inputs before it, outputs behind it; then name=value
numbers    the double and float arguments. They travel in registers of their own, so where they
           stood among the others is not known; equal neighbours are written once

The bool and int arguments are as wide as the caller made them. Nothing in a line depends on where
memory is, so equal calls have equal text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path

# The names of a profile for those of the log.
DTYPES = {
    "bf16": "DT_BF16",
    "f16": "FLOAT16",
    "f32": "FLOAT",
    "f64": "DOUBLE",
    "i4": "INT4",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "bool": "BOOL",
    "c64": "COMPLEX64",
    "c128": "COMPLEX128",
    "hif8": "HIFLOAT8",
    "f8e5m2": "FLOAT8_E5M2",
    "f8e4m3": "FLOAT8_E4M3FN",
    "e8m0": "FLOAT8_E8M0",
    "f4e2m1": "FLOAT4_E2M1",
    "f4e1m2": "FLOAT4_E1M2",
}
_LINE = re.compile(r"(\d+) (\d+) (\d+) (.+)")
_CALL = re.compile(r"([A-Z]+) ([\w.:]+)\((.*)\)")
_TENSOR = re.compile(
    r"(?P<dtype>\w+)\[(?P<shape>[\d,]*)\]:(?P<format>\w+(?::\d+)?)"
    r"(?:/(?P<strides>[\d,]+))?(?:\+(?P<offset>\d+))?(?:<(?P<storage>[\d,]*)>)?"
)
_PIECE = re.compile(r'"[^"]*"|\{[^}]*\}|\([^)]*\)|\[[^\]]*\]|<[^>]*>|(?P<cut>, | -> |; )|.')


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor as a kernel was given it. `dtype` is a profile's spelling; `storage` is the shape
    in memory: of a plain format, (number of elements,)."""

    dtype: str
    shape: tuple[int, ...]
    format: str
    strides: tuple[int, ...]
    offset: int
    storage: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """Whether it lies in memory as its shape says."""
        return _counts(self.strides, self.shape) == _counts(dense(self.shape), self.shape)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch. `arguments` are their texts, in order; `text` is everything that identifies the
    call, without when and where it ran; `outputs_from` is known of ACLOP and ATB alone."""

    kind: str
    name: str
    arguments: tuple[str, ...]
    numbers: tuple[float, ...]
    text: str
    ns: int = 0
    device: int = 0
    stream: int = 0
    outputs_from: int | None = None

    @property
    def tensors(self) -> tuple[RecordedTensor, ...]:
        """Every tensor, those in lists too, in order."""
        return tuple(_tensors(self.arguments))

    @property
    def outputs(self) -> tuple[RecordedTensor, ...]:
        """The tensors behind the arrow of an ACLOP or ATB call."""
        return tuple(_tensors(self.arguments[self.outputs_from or 0 :]))

    def number(self, position: int) -> float:
        """Return the number of the host among the arguments, such as 2 of `f32=2`."""
        return float(self.arguments[position].partition("=")[2])


def read_calls(path: Path, offset: int = 0) -> list[Recorded]:
    """The launches of a log, or those behind an offset in bytes; a last line that is cut off is
    left out."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode().splitlines(keepends=True)
    return [parse_line(line.rstrip("\n")) for line in lines if line.endswith("\n")]


def parse_line(line: str) -> Recorded:
    """One line of the log; ValueError where it is none."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"no line of the fake CANN's log: {line!r}")
    ns, device, stream, text = match.groups()
    return replace(parse_call(text), ns=int(ns), device=int(device), stream=int(stream))


@lru_cache(maxsize=4096)  # a session launches the same few calls over and over
def parse_call(text: str) -> Recorded:
    """A call without its time and place, as golden files hold it; ValueError where it is none."""
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(f"no call of the fake CANN's log: {text!r}")
    kind, name, inside = match.groups()
    arguments, numbers, outputs_from = _split(inside)
    return Recorded(
        kind=kind,
        name=name,
        arguments=tuple(arguments),
        numbers=tuple(map(float, numbers)),
        text=text,
        outputs_from=outputs_from,
    )


def parse_tensor(text: str) -> RecordedTensor | None:
    """The tensor that an argument's text describes; None where it is something else."""
    match = _TENSOR.fullmatch(text)
    if match is None:
        return None
    shape = _ints(match["shape"])
    return RecordedTensor(
        dtype=DTYPES.get(match["dtype"], match["dtype"].upper()),
        shape=shape,
        format=match["format"],
        strides=_ints(match["strides"]) if match["strides"] else dense(shape),
        offset=int(match["offset"] or 0),
        storage=(prod(shape),) if match["storage"] is None else _ints(match["storage"]),
    )


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor that lies in memory as its shape says."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _split(inside: str) -> tuple[list[str], list[str], int | None]:
    """The arguments, the numbers behind them, and where outputs begin."""
    parts, found, outputs_from, numbers_from = [""], [], None, None
    for piece in _PIECE.finditer(inside):
        if piece["cut"] is None:
            parts[-1] += piece[0]
            continue
        found.append(piece["cut"])
        if piece["cut"] == " -> ":
            outputs_from = len(parts)
        if piece["cut"] == "; ":
            numbers_from = len(parts)
        parts.append("")
    if parts == [""]:
        return [], [], None
    if numbers_from is None:
        return parts, [], outputs_from
    return [p for p in parts[:numbers_from] if p], parts[numbers_from:], outputs_from


def _tensors(arguments: tuple[str, ...]) -> Iterator[RecordedTensor]:
    for argument in arguments:
        inner = argument[1:-1].split(", ") if argument.startswith("{") else [argument]
        yield from filter(None, map(parse_tensor, inner))


def _counts(strides: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """The strides that matter: of a dimension of one element, none does."""
    return [stride for stride, size in zip(strides, shape, strict=True) if size != 1]


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))
