"""`opmeter doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from collector.errors import BadInput
from jobs.cli.check_lines import print_checks
from jobs.cli.options import RootOption
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from jobs.doctor.machine import Check


def doctor_verb(
    *,
    root: RootOption = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="check a cluster, and the store as its pods reach it")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(help="with --cluster: where campaigns run  [the context's]")
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="with --cluster: the machines  [those of a campaign there]")
    ] = None,
    together: Annotated[
        str | None,
        typer.Option(help="measure whether devices of this backend disturb each other: npu, cuda"),
    ] = None,
) -> int:
    """Check this machine and the store, and print what to do about what is wrong."""
    if together is not None:
        return _check_together(together)
    if cluster:
        from jobs.doctor.cluster import check_cluster

        return int(_failed(check_cluster(namespace, site, root)) > 0)
    return _check_this_machine(root)


def _check_this_machine(root: str | None) -> int:
    """Print every check; the exit code is 1 where one failed."""
    from jobs.cli.opening import DEFAULT_ROOT
    from jobs.doctor.machine import check_machine, check_store, describe_stack
    from jobs.doctor.npu import check_npus, is_npu_host

    npus = check_npus() if is_npu_host() else ()
    failed = _failed(chain(check_machine(), npus, check_store(root or DEFAULT_ROOT)))
    for line in describe_stack():
        say(f"stack  {line}")
    return int(failed > 0)


def _check_together(backend: str) -> int:
    """Whether the devices of this machine may measure at the same time."""
    from collector.stack import BACKENDS
    from jobs.doctor.concurrency import check_concurrency

    several = [name for name in BACKENDS if name != "cpu"]  # a cpu is all cores of its machine
    if backend not in several:
        raise BadInput(f"--together: expected {' or '.join(several)}, got {backend!r}")
    return int(_failed(check_concurrency(backend)) > 0)


def _failed(checks: Iterable[Check]) -> int:
    return sum(not check.ok for check in print_checks(checks))
