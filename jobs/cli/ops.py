"""`opmeter ops`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from collector.errors import BadInput

if TYPE_CHECKING:
    from collector.ops.spec import OpSpec

_COLUMNS = ("kernel", "API", "takes", "environment", "state")


def ops_verb(
    kernel: Annotated[str | None, typer.Argument(help="one kernel type in full  [all]")] = None,
) -> None:
    """List the operators that can be replayed."""
    from rich.console import Console
    from rich.table import Table

    from collector.ops.registry import all_ops

    # A terminal gets a table, a pipe tab-separated lines.
    if kernel is not None:
        _show(kernel)
    elif sys.stdout.isatty():
        table = Table(*_COLUMNS)
        for op in all_ops():
            table.add_row(*_row(op).values())
        Console(markup=False).print(table)
    else:
        typer.echo("\t".join(_COLUMNS))
        for op in all_ops():
            typer.echo("\t".join(_row(op).values()))


def _row(op: OpSpec) -> Mapping[str, str]:
    rules = (constraint.text for constraint in op.constraints)
    needs = ", ".join(need.name.lower() for need in sorted(op.npu.needs))
    cells = (op.kernel, op.call, "; ".join(rules), needs or op.library, _state(op))
    return dict(zip(_COLUMNS, cells, strict=True))


def _state(op: OpSpec) -> str:
    """On which devices the call was seen to launch this kernel; and whose schema none could see."""
    if op.verified_on:
        return f"verified on {', '.join(op.verified_on)}"
    if op.library == "vllm-ascend":
        return "not yet on an NPU; its schema is in no wheel at hand"
    return "not yet on an NPU"


def _show(kernel: str) -> None:
    from collector.ops.registry import find

    op = find(kernel)
    if op is None:
        raise BadInput(f"no operator is declared for {kernel!r}; `opmeter ops` lists all")
    for name, text in _lines(op):
        typer.echo(f"{name:<13}{text}")


def _lines(op: OpSpec) -> Iterator[tuple[str, str]]:
    yield "kernel", op.kernel
    if op.twins:
        yield "or", f"{', '.join(op.twins)}: the runtime chooses"
    yield "API", op.call
    for index, slot in enumerate(op.slots):
        notes = [
            "optional" if index in op.optional else "",
            "may be FRACTAL_NZ" if index in op.npu.nz else "",
            "may repeat" if op.variadic and index == len(op.slots) - 1 else "",
        ]
        said = ", ".join(note for note in notes if note)
        yield f"slot {index}", f"{slot} ({said})" if said else slot
    for constraint in op.constraints:
        yield "takes", constraint.text
    yield "library", op.library
    for need in sorted(op.npu.needs):
        yield "needs", need.value
    yield "state", _state(op)
