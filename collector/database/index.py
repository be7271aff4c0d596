"""The index of a version directory: the displayed durations, sorted so that a query finds them.

One immutable file per version directory. It is mapped into memory and read in place:

    magic, length of the header     16 bytes, 8 bytes
    header                          JSON: blocks of rows, positions of the arrays
    arrays                          one entry per row, little-endian, each at a multiple of 8 bytes
    texts                           settings, lengths and warnings, each distinct text once

A block has the rows of one kernel type whose inputs agree in dtypes and ranks. Its rows are sorted
by a 64-bit hash of the input sizes, so a case is found by bisection and confirmed by its sizes.
"""

import json
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.codec.errors import DamagedObject

MAGIC = b"opmeter index 2\n"
Sizes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# The arrays of an index by name, with the type of their entries. `sizes` has, row by row, the input
# sizes, the output sizes, and the mean and the skew of each list of lengths of its block.
ARRAYS: Mapping[str, str] = {
    "hash": "<u8",
    "mean_us": "<f8",
    "low_us": "<f8",
    "high_us": "<f8",
    "degrees": "<f8",
    "sizes": "<i8",
    "sessions": "<u4",
    "settings": "<u4",
    "lengths": "<u4",
    "warnings": "<u4",
    "case": "S20",
}
POOLS = ("settings", "lengths", "warnings")
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """Rows of one kernel type that differ in sizes and settings only.

    `inputs` are the dtype and the rank of each input (rank -1 without a shape), `outputs` the ranks
    of the outputs, `lengths` the names of the columns with lists of lengths. `free` are the
    positions of the sizes, of inputs and then of outputs, that do not change the kernel. The rows
    are `begin` to `end`, their sizes are at `at` in the array of sizes. A row has `width` sizes, of
    which the first `key_width` are those of its inputs."""

    kernel: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[int, ...]
    lengths: tuple[str, ...]
    free: tuple[int, ...]
    begin: int
    end: int
    at: int
    key_width: int = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        of_inputs = sum(max(rank, 0) for _, rank in self.inputs)
        of_outputs = sum(max(rank, 0) for rank in self.outputs)
        object.__setattr__(self, "key_width", of_inputs)
        object.__setattr__(self, "width", of_inputs + of_outputs + 2 * len(self.lengths))

    def fixed(self, sizes: list[int], first: int = 0) -> list[int]:
        """Return the sizes from position `first` on, with 0 for those that do not change the
        kernel."""
        if not self.free:
            return sizes
        return [0 if at in self.free else size for at, size in enumerate(sizes, first)]


@cache
def multipliers(count: int) -> tuple[int, ...]:
    """Return odd 64-bit numbers, one for each size of a row: outputs of splitmix64."""
    found, state = [], 0
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        found.append(mixed ^ (mixed >> 31) | 1)
    return tuple(found)


@cache
def _factors(count: int) -> tuple[tuple[int, ...], int]:
    """Return the factor of each size of a row, and their sum: one is added to each size."""
    factors = multipliers(count)
    return factors, sum(factors)


def hash_of(sizes: Sequence[int]) -> int:
    """Return the hash of the input sizes of one row."""
    factors, total = _factors(len(sizes))
    for product in map(mul, sizes, factors):
        total += product
    return total & _MASK


def hashes_of(sizes: Sizes) -> Hashes:
    """Return the hashes of rows of input sizes (rows, sizes)."""
    factors = np.array(multipliers(sizes.shape[1]), np.uint64)
    found: Hashes = ((sizes.astype(np.uint64) + np.uint64(1)) * factors).sum(
        axis=1, dtype=np.uint64
    )
    return found


class Index:
    """An index in memory. Reading it changes nothing, so that threads share it."""

    def __init__(self, data: memoryview, *, key: str) -> None:
        """Open the bytes of an index. Raises DamagedObject, naming the key, for other bytes."""
        self._data, self._key = data, key
        try:
            if bytes(data[: len(MAGIC)]) != MAGIC or sys.byteorder != "little":
                raise ValueError("no header")
            start = len(MAGIC) + 8
            end = start + int.from_bytes(data[len(MAGIC) : start], "little")
            header = json.loads(bytes(data[start:end]))
            self.rows = int(header["rows"])
            self.blocks = tuple(_block(one) for one in header["blocks"])
            self.arrays = {
                name: np.frombuffer(data, kind, int(header["arrays"][name][1]), at)
                for name, kind in ARRAYS.items()
                for at in [int(header["arrays"][name][0])]
            }
            self._pools = {name: _Pool(data, *header["pools"][name]) for name in POOLS}
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            what = "expected an index of a version directory"
            raise DamagedObject(f"{what}: {error}", path=key) from error
        # Entries of a memoryview are plain numbers, in a third of the time that numpy needs.
        self.hashes = self.arrays["hash"].data
        self.sizes = self.arrays["sizes"].data
        self.mean_us = self.arrays["mean_us"].data
        self.low_us = self.arrays["low_us"].data
        self.high_us = self.arrays["high_us"].data
        self.sessions = self.arrays["sessions"].data
        self.settings = self.arrays["settings"].data
        self.lengths = self.arrays["lengths"].data
        self.warnings = self.arrays["warnings"].data

    def __reduce__(self) -> tuple[Callable[[bytes, str], "Index"], tuple[bytes, str]]:
        """Pickle the bytes: a process pool may have a copy."""
        return _unpickled, (bytes(self._data), self._key)

    def text(self, pool: str, number: int) -> str:
        """Return a text of a pool by its number."""
        return self._pools[pool].text(number)

    def texts(self, pool: str) -> list[str]:
        """Return all texts of a pool, in the order of their numbers."""
        return [self._pools[pool].text(number) for number in range(self._pools[pool].count)]

    def find(self, block: IndexBlock, sizes: list[int]) -> Iterator[int]:
        """Yield the rows of a block with exactly these input sizes, in their order."""
        own, width = block.fixed(sizes), block.width
        own_hash, hashes, known = hash_of(own), self.hashes, self.sizes
        row = bisect_left(hashes, own_hash, block.begin, block.end)
        while row < block.end and hashes[row] == own_hash:
            at = block.at + (row - block.begin) * width
            if block.fixed(known[at : at + len(sizes)].tolist()) == own:
                yield row
            row += 1

    def output_sizes(self, block: IndexBlock, row: int) -> list[int]:
        """Return the sizes of the outputs of a row of a block."""
        at = block.at + (row - block.begin) * block.width
        end = at + block.width - 2 * len(block.lengths)
        return self.sizes[at + block.key_width : end].tolist()

    def sizes_of(self, block: IndexBlock) -> Sizes:
        """Return the sizes of a block's rows (rows, sizes)."""
        count = (block.end - block.begin) * block.width
        found: Sizes = self.arrays["sizes"][block.at : block.at + count]
        return found.reshape(block.end - block.begin, block.width)

    def case(self, row: int) -> str:
        """Return the id of a row's case."""
        return bytes(self.arrays["case"][row]).decode()


def _unpickled(data: bytes, key: str) -> Index:
    return Index(memoryview(data), key=key)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Distinct texts: where each ends, and their bytes."""

    data: memoryview
    at: int
    count: int

    def text(self, number: int) -> str:
        ends = self.data[self.at : self.at + 8 * (self.count + 1)].cast("Q")
        begin = self.at + 8 * (self.count + 1)
        return bytes(self.data[begin + ends[number] : begin + ends[number + 1]]).decode()


def _block(one: Mapping[str, Any]) -> IndexBlock:
    return IndexBlock(
        kernel=str(one["kernel"]),
        inputs=tuple((str(dtype), int(rank)) for dtype, rank in one["inputs"]),
        outputs=tuple(map(int, one["outputs"])),
        lengths=tuple(map(str, one["lengths"])),
        free=tuple(map(int, one["free"])),
        begin=int(one["begin"]),
        end=int(one["end"]),
        at=int(one["at"]),
    )


def index_file(
    blocks: Sequence[IndexBlock],
    arrays: Mapping[str, npt.NDArray[Any]],
    pools: Mapping[str, list[str]],
) -> bytes:
    """Return the file of an index: equal arguments give equal bytes."""
    parts: list[bytes] = []
    at = 0

    def add(data: bytes) -> int:
        nonlocal at
        begin = at
        parts.append(data + bytes(-len(data) % 8))
        at += len(parts[-1])
        return begin

    places = {
        name: [add(arrays[name].astype(kind).tobytes()), len(arrays[name])]
        for name, kind in ARRAYS.items()
    }
    texts = {}
    for name in POOLS:
        encoded = [text.encode() for text in pools[name]]
        ends = np.cumsum([0, *map(len, encoded)], dtype="<u8").tobytes()
        texts[name] = [add(ends + b"".join(encoded)), len(encoded)]
    described = [
        {
            "kernel": one.kernel,
            "inputs": one.inputs,
            "outputs": one.outputs,
            "lengths": one.lengths,
            "free": one.free,
            "begin": one.begin,
            "end": one.end,
            "at": one.at,
        }
        for one in blocks
    ]
    # The positions depend on the header's length, which is fixed first by padding.
    plain = {"rows": len(arrays["hash"]), "blocks": described}
    room = len(json.dumps(plain)) + 64 * (len(ARRAYS) + len(POOLS))
    room += -(len(MAGIC) + 8 + room) % 8
    first = len(MAGIC) + 8 + room
    moved = [
        {name: [begin + first, count] for name, (begin, count) in group.items()}
        for group in (places, texts)
    ]
    header = json.dumps({**plain, "arrays": moved[0], "pools": moved[1]}).encode().ljust(room)
    return b"".join([MAGIC, len(header).to_bytes(8, "little"), header, *parts])
