"""Which C function of CANN an operator's call ends in, and with what arguments:
`data/launched.csv`, made of the recorded calls of the stock torch_npu 2.13.0.

    aclnnSparseFlashAttention, "..........ss.........", some numbers

A `s` is a text, a `.` any other argument but a floating-point number: those travel in registers of
their own, so that their places are not known.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class CFunction:
    """A function of C as it is called, or declared; without workspace and executor."""

    name: str
    arguments: str
    has_numbers: bool


def launched_by(kernel_type: str) -> tuple[CFunction, ...]:
    """The functions that launch a kernel; empty where none was recorded."""
    return _table().get(kernel_type, ())


@cache
def _table() -> Mapping[str, tuple[CFunction, ...]]:
    text = (files("collector") / "data" / "launched.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(io.StringIO(text))
    table: dict[str, tuple[CFunction, ...]] = {}
    for kernel, name, arguments, numbers in rows:
        found = CFunction(name, arguments, numbers == "yes")
        table[kernel] = (*table.get(kernel, ()), found)
    return table
