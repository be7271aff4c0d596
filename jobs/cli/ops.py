"""`opmeter ops`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.ops.expression import split_outside
from collector.ops.own import find_operator, own_operators
from collector.ops.registry import all_ops, family_of
from collector.ranks.collective import DTYPES, OPERATIONS
from collector.ranks.experts import KERNELS
from jobs.cli.opening import declare_operators, open_existing
from jobs.cli.options import OperatorsOption
from jobs.cli.terminal import print_json, print_table, say

if TYPE_CHECKING:
    from collector.ops.spec import OpSpec

Proved = Mapping[str, Sequence[str]]  # kernel type -> devices
_COLUMNS = ("kernel", "API", "takes", "environment", "state")
_OF_A_CAMPAIGN = "rows with `EP Size` of a campaign, as a gang"


def ops_command(
    kernel: Annotated[
        str | None, typer.Argument(help="kernel type, in full  [default: all]")
    ] = None,
    releases: Annotated[
        bool,
        typer.Option("--releases", help="show which releases of torch_npu and vLLM-Ascend fit"),
    ] = False,
    root: Annotated[
        str | None,
        typer.Option(help="store with results of self-tests to include  [default: none]"),
    ] = None,
    operators: OperatorsOption = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="file of operators of your own to run once on the CPU and compare with its "
            "signatures and references",
        ),
    ] = None,
    drafted: Annotated[
        Path | None,
        typer.Option(
            "--draft",
            metavar="PROFILE",
            help="profile for whose kernels without a declaration a file of operators is printed",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> int:
    """List the operators that can be measured, or describe one.

    On a terminal the list is a table; elsewhere it is tab-separated, with the rules of each kernel.
    With --operators the list is that of these files. With --check the exit code is 1 if an operator
    fails, and 2 if its file cannot be loaded.

    \b
    Examples:
      opmeter ops
      opmeter ops MatMulV3
      opmeter ops --releases --json
      opmeter ops --check my_ops.py
      opmeter ops --draft PROF_000001/ > my_ops.py
    """
    if drafted is not None:
        return _draft(drafted)
    if check:
        return _check(check, as_json=as_json)
    verified = _verified(root) if root else {}
    own = declare_operators(operators)
    listed = own_operators() if own else all_ops()
    chosen = [op for op in listed if kernel in (None, op.kernel)]
    over_ranks = [] if own else list(_rows_over_ranks())
    over_ranks = [row for row in over_ranks if kernel in (None, row["kernel"])]
    if kernel is not None and find_operator(kernel) is None and not over_ranks:
        raise BadInput(f"no operator is declared for {kernel!r}; `opmeter ops` lists all")
    if as_json:
        print_json([*(_as_json(op, verified) for op in chosen), *over_ranks])
    elif kernel is not None:
        op = find_operator(kernel)
        for name, text in _lines(op, verified) if op else over_ranks[0].items():
            say(f"{name:<13}{text}")
    elif releases:
        rows = list(_rows_of_releases())
        print_table(list(rows[0]), [list(row.values()) for row in rows], optional=list(rows[0])[3:])
    elif sys.stdout.isatty():
        rows = list(map(_short, [*(_row(op, verified) for op in chosen), *over_ranks]))
        print_table(list(rows[0]), [list(row.values()) for row in rows], optional=("state",))
    else:
        rows = [*(_row(op, verified) for op in chosen), *over_ranks]
        print_table(_COLUMNS, [list(row.values()) for row in rows])
    return 0


def _draft(profile: Path) -> int:
    from collector.ops.draft import draft
    from collector.profiles.kernel_details import read_profile

    text, count = draft(read_profile([profile]).records, profile.name)
    if count:
        say(text.rstrip())
    say(f"{counted(count, 'kernel')} of {profile} without a declaration", err=True)
    return 0


def _check(names: Sequence[str], *, as_json: bool) -> int:
    from collector.ops.own import find_operator_file
    from jobs.selftest.own_operators import check_operator_file

    files = [find_operator_file(name) for name in names]
    found = [(file, one) for file in files for one in check_operator_file(file)]
    if as_json:
        print_json(
            [
                {
                    "file": file.path,
                    "line": one.operator.line,
                    "kernel": one.operator.kernel,
                    "case": one.case,
                    "problem": one.problem,
                }
                for file, one in found
            ]
        )
    else:
        for file, one in found:
            case = one.case or one.operator.kernel
            compared = "signature and reference" if one.operator.reference else "signature"
            result = one.problem or f"equals its {compared}"
            say(f"{file.path}:{one.operator.line}: {case}: {result}")
    return int(any(one.problem for _, one in found))


def _verified(root: str) -> dict[str, list[str]]:
    from jobs.selftest.archive import read_kept

    verified: dict[str, list[str]] = {}
    for one in read_kept(open_existing(root)):
        for name in one.kernels:
            verified.setdefault(name, []).append(one.stack.device)
    return verified


def _short(row: Mapping[str, str]) -> Mapping[str, str]:
    """What fits on a terminal: the rules of a kernel are left to `opmeter ops KERNEL`."""
    state = row["state"].partition(";")[0].partition(" or `")[0]
    return {"kernel": row["kernel"], "API": row["API"], "state": state}


def _as_json(op: OpSpec, proved: Proved) -> dict[str, object]:
    from collector.ops.releases import kinds_of_rows, release_status

    return {
        **_row(op, proved),
        "family": family_of(op.kernel),
        "twins": op.twins,
        "slots": op.slots,
        "signature": " ".join(op.signature.split()),
        "rules": [constraint.text for constraint in op.constraints],
        "assumes": op.assumes,
        "library": op.library,
        "needs": [need.value for need in sorted(op.npu.needs)],
        "releases": release_status(op.kernel),
        "releases_by_rows": {
            rows: release_status(op.kernel, rows) for rows in kinds_of_rows(op.kernel) if rows
        },
    }


def _row(op: OpSpec, proved: Proved) -> Mapping[str, str]:
    rules = (" ".join(op.signature.split()), *(constraint.text for constraint in op.constraints))
    needs = ", ".join(need.name.lower() for need in sorted(op.npu.needs))
    cells = (op.kernel, op.call, "; ".join(rules), needs or op.library, _state(op, proved))
    return dict(zip(_COLUMNS, cells, strict=True))


def _rows_of_releases() -> Iterator[Mapping[str, str]]:
    """A column for each release. Operators that call torch's own functions have no row: every
    release has them."""
    from collector.ops.releases import kinds_of_rows, known_releases, release_status

    for op in all_ops():
        for rows in kinds_of_rows(op.kernel):
            statuses = release_status(op.kernel, rows)
            found = {release: statuses.get(release, "") for release in known_releases()}
            yield {"kernel": op.kernel, "API": op.call, "rows": rows, **found}


def _rows_over_ranks() -> Iterator[Mapping[str, str]]:
    """Kernels that no single device can replay, and the command that measures them. The first
    expert kernel has INT8 weights, the second others."""
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
    """The devices on which the call was seen to launch this kernel, or the proof that there is."""
    from collector.ops.releases import proof_of, type_proof_of, verified_on

    if op.file:
        return f"of a file of operators ({op.file})"
    devices = sorted({*verified_on(op.kernel), *proved.get(op.kernel, ())})
    if devices:
        return f"verified on {', '.join(devices)}"
    if not (proof := proof_of(op.kernel)):
        return "not yet on an NPU; not in proofs.csv: python -m tools proofs writes it"
    return f"not yet on an NPU; its type {type_proof_of(op.kernel)}; {proof}"


def _lines(op: OpSpec, proved: Proved) -> Iterator[tuple[str, str]]:
    from collector.database.op_mapping_writing import mapped_operators
    from collector.ops.releases import kinds_of_rows, release_status
    from collector.ranks.distribution import DISTRIBUTE_KERNELS

    yield "kernel", op.kernel
    if op.twins:
        yield "or", f"{', '.join(op.twins)}: the runtime chooses"
    yield "API", op.call
    for operator in mapped_operators(op.kernel):
        yield "looked up", f"{operator}, in op_mapping.yaml"
    for number, variant in enumerate(split_outside(op.signature, ";")):
        yield "or" if number else "signature", " ".join(variant.split())
    if in_blocks := [op.slots[at] for at in sorted(op.npu.nz)]:
        yield "blocks", f"{', '.join(in_blocks)} may be FRACTAL_NZ"
    for constraint in op.constraints:
        yield "rule", constraint.text
    if op.assumes:
        yield "assumes", op.assumes
    if op.npu.graph is not None:
        yield "graphs", "rows of a graph are launched by a graph that torchair compiles"
    yield "library", op.library
    if op.npu.served:
        yield "or", f"{op.npu.served}, where vLLM-Ascend's custom OPP has the kernel"
    for need in sorted(op.npu.needs):
        yield "needs", need.value
    if op.kernel in DISTRIBUTE_KERNELS:
        yield "over ranks", _OF_A_CAMPAIGN
    yield "state", _state(op, proved)
    for rows in kinds_of_rows(op.kernel):
        about = f" ({rows})" if rows else ""
        for release, status in release_status(op.kernel, rows).items():
            yield "release", f"{release}{about}: {status}"
