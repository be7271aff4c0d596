"""`opmeter doctor`."""

from itertools import chain

import typer

from jobs.doctor import check_machine, check_store, describe_stack
from jobs.doctor_npu import check_npus, is_npu_host
from jobs.verbs.opening import DEFAULT_ROOT


def doctor_verb(root: str | None) -> int:
    """Print every check; the exit code is 1 where one failed."""
    failed = 0
    npus = check_npus() if is_npu_host() else ()
    for check in chain(check_machine(), npus, check_store(root or DEFAULT_ROOT)):
        typer.echo(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<10} {check.found}")
        if not check.ok:
            typer.echo(f"      fix: {check.fix}")
            failed += 1
    for line in describe_stack():
        typer.echo(f"stack  {line}")
    return int(failed > 0)
