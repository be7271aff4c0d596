"""Kernel types among which the runtime chooses for one and the same call."""

from collections.abc import Iterator
from dataclasses import replace

from collector.case import Case
from collector.ops.registry import find


def twins_of(case: Case) -> Iterator[Case]:
    """The case, and the same tensors under each kernel type that the same call may launch."""
    yield case
    op = find(case.kernel_type)
    for kernel_type in op.twins if op is not None else ():
        yield replace(case, kernel_type=kernel_type)
