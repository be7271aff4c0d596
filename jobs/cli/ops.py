"""`opmeter ops`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput

if TYPE_CHECKING:
    from collector.ops.spec import OpSpec

Proved = Mapping[str, Sequence[str]]  # kernel type -> devices
_COLUMNS = ("kernel", "API", "takes", "environment", "state")
_OF_A_CAMPAIGN = "rows with `EP Size` of a campaign, as a gang"


def ops_verb(
    kernel: Annotated[str | None, typer.Argument(help="one kernel type in full  [all]")] = None,
    releases: Annotated[
        bool, typer.Option("--releases", help="which releases of torch_npu and vLLM-Ascend take it")
    ] = False,
    root: Annotated[
        str | None, typer.Option(help="a store: what self-tests proved counts too  [none]")
    ] = None,
) -> None:
    """List the operators that can be replayed, and what is measured over ranks."""
    from rich.console import Console
    from rich.table import Table

    from collector.ops.registry import all_ops

    # A terminal gets a table, a pipe tab-separated lines.
    proved = _proved(root) if root else {}
    if kernel is not None:
        _show(kernel, proved)
        return
    rows = [*(_row(op, proved) for op in all_ops()), *_rows_over_ranks()]
    if releases:
        rows = list(_rows_of_releases())
    columns = list(rows[0])
    if sys.stdout.isatty():
        table = Table(*columns)
        for row in rows:
            table.add_row(*row.values())
        Console(markup=False).print(table)
    else:
        typer.echo("\t".join(columns))
        for row in rows:
            typer.echo("\t".join(row.values()))


def _proved(root: str) -> dict[str, list[str]]:
    """The devices on which self-tests of a store proved a kernel's launches, by kernel type."""
    from collector.store import open_store
    from jobs.selftest.archive import read_kept

    proved: dict[str, list[str]] = {}
    for one in read_kept(open_store(root)):
        for name in one.kernels:
            proved.setdefault(name, []).append(one.stack.device)
    return proved


def _row(op: OpSpec, proved: Proved) -> Mapping[str, str]:
    rules = (constraint.text for constraint in op.constraints)
    needs = ", ".join(need.name.lower() for need in sorted(op.npu.needs))
    cells = (op.kernel, op.call, "; ".join(rules), needs or op.library, _state(op, proved))
    return dict(zip(_COLUMNS, cells, strict=True))


def _rows_of_releases() -> Iterator[Mapping[str, str]]:
    """A column a release. What calls torch's own functions has no row: every release has those."""
    from collector.ops.registry import all_ops
    from collector.ops.releases import answers_of, known_releases

    for op in all_ops():
        if answers := answers_of(op.kernel):
            told = {release: answers.get(release, "") for release in known_releases()}
            yield {"kernel": op.kernel, "API": op.call, **told}


def _rows_over_ranks() -> Iterator[Mapping[str, str]]:
    """What no single device can replay, and the command that measures it. The first kernel of the
    experts' has weights of INT8, the second others."""
    from collector.ranks.collective import DTYPES, OPERATIONS
    from collector.ranks.experts import KERNELS

    experts = "torch.ops._C_ascend.dispatch_ffn_combine", "seven inputs of one rank, and EP Size"
    by_dfc = f"over ranks: `opmeter comm dfc`, or {_OF_A_CAMPAIGN}; not yet on an NPU"
    for kernel in KERNELS:
        yield dict(zip(_COLUMNS, (kernel, *experts, "vllm_ascend", by_dfc), strict=True))
    for one in OPERATIONS.values():
        cells = (
            *(one.kernel_type, f"{one.name} of torch.distributed"),
            *(f"whole elements of {', '.join(DTYPES)}, over two ranks or more", "torch_npu"),
            f"over ranks: `opmeter comm --ops {one.name}`, or `collectives` of a campaign; "
            "not yet on an NPU",
        )
        yield dict(zip(_COLUMNS, cells, strict=True))


def _state(op: OpSpec, proved: Proved) -> str:
    """On which devices the call was seen to launch this kernel, or else what is known of it."""
    from collector.ops.releases import proof_of, type_proof_of, verified_on

    devices = sorted({*verified_on(op.kernel), *proved.get(op.kernel, ())})
    if devices:
        return f"verified on {', '.join(devices)}"
    if not (proof := proof_of(op.kernel)):
        return "not yet on an NPU; not in proofs.csv: python -m tests.npu.proofs writes it anew"
    return f"not yet on an NPU; its type {type_proof_of(op.kernel)}; {proof}"


def _show(kernel: str, proved: Proved) -> None:
    from collector.ops.registry import find

    op = find(kernel)
    over_ranks = {row["kernel"]: row for row in _rows_over_ranks()}
    if op is None and kernel not in over_ranks:
        raise BadInput(f"no operator is declared for {kernel!r}; `opmeter ops` lists all")
    for name, text in _lines(op, proved) if op else over_ranks[kernel].items():
        typer.echo(f"{name:<13}{text}")


def _lines(op: OpSpec, proved: Proved) -> Iterator[tuple[str, str]]:
    from collector.ops.releases import answers_of
    from collector.ranks.distribution import DISTRIBUTE_KERNELS

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
    if op.assumes:
        yield "assumes", op.assumes
    if op.npu.graph is not None:
        yield "graphs", "rows as a graph leaves them are launched by one, which torchair compiles"
    yield "library", op.library
    if op.npu.served:
        yield "or", f"{op.npu.served}, where vLLM-Ascend's custom OPP has the kernel"
    for need in sorted(op.npu.needs):
        yield "needs", need.value
    if op.kernel in DISTRIBUTE_KERNELS:
        yield "over ranks", _OF_A_CAMPAIGN
    yield "state", _state(op, proved)
    for release, answer in answers_of(op.kernel).items():
        yield "release", f"{release}: {answer}"
