"""`opmeter doctor`."""

from collections.abc import Iterable
from itertools import chain

import typer

from collector.errors import BadInput
from jobs.doctor import Check, check_machine, check_store, describe_stack
from jobs.doctor_npu import check_npus, is_npu_host
from jobs.verbs.opening import DEFAULT_ROOT


def doctor_verb(root: str | None) -> int:
    """Print every check; the exit code is 1 where one failed."""
    npus = check_npus() if is_npu_host() else ()
    failed = _print(chain(check_machine(), npus, check_store(root or DEFAULT_ROOT)))
    for line in describe_stack():
        typer.echo(f"stack  {line}")
    return int(failed > 0)


def doctor_cluster_verb(namespace: str | None, site: str | None, root: str | None) -> int:
    """The same of a cluster, and of the store as its pods reach it."""
    from jobs.verbs.doctor_cluster import check_cluster

    return int(_print(check_cluster(namespace, site, root)) > 0)


def doctor_together_verb(backend: str) -> int:
    """Whether the devices of this machine may measure at the same time."""
    from jobs.doctor_concurrency import check_concurrency

    if backend not in ("npu", "cuda"):
        raise BadInput(f"--together {backend!r}: npu or cuda is wanted")
    return int(_print(check_concurrency(backend)) > 0)


def _print(checks: Iterable[Check]) -> int:
    failed = 0
    for check in checks:
        word = "FAIL" if not check.ok else "skip" if check.skipped else "ok  "
        typer.echo(f"{word}  {check.name:<10} {check.found}")
        if not check.ok:
            typer.echo(f"      fix: {check.fix}")
            failed += 1
    return failed
