"""Commands about this machine: doctor, selftest and stack."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector import environment
from collector.codec.errors import BadInput
from collector.codec.text import counted
from jobs.cli.options import RootOption
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.store.base import Store
    from jobs.doctor.machine import Check


# `opmeter stack`.


def stack_verb(
    *,
    backend: Annotated[str, typer.Option(help="npu, cuda or cpu")] = "npu",
    root: Annotated[str | None, typer.Option(help="also look whether this store answers")] = None,
    device: Annotated[
        str | None, typer.Option(help="the NPU's name, where its chip may have several")
    ] = None,
    limit: Annotated[float, typer.Option(help="give up after so many seconds; 0 for never")] = 0.0,
) -> None:
    """Print the stack of this machine as JSON, in one line."""
    from collector.codec.canonical import canonical_json
    from collector.host.stack import local_stack
    from collector.store import open_store

    if device is not None and backend != "npu":
        raise BadInput(f"--device names an NPU, and the device of backend {backend} names itself")
    with _ending_after(limit):
        if root is not None:
            store = open_store(root, said_by="--root")
            typer.echo(f"store {_answering(store)}", err=True)
        found = local_stack(backend, device)
    typer.echo(canonical_json(found.as_json()).decode())


def _answering(store: Store) -> str:
    """Where it is, after one question of a kind that workers ask: they may list, and need not be
    allowed to write anywhere but where they measure. Raises where the store does not answer."""
    from collector.model import keys

    next(iter(store.list(keys.CAMPAIGNS)), None)
    return f"{store.url} answers"


@contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """End this process with a word where it takes longer: a driver that hangs lets go of nobody,
    and process 1 of a container is not killed by an alarm."""

    def give_up() -> None:
        typer.echo(f"no answer within {seconds:g} s: the driver or the store hangs", err=True)
        os._exit(1)

    if not seconds:
        yield
        return
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# How checks are printed, one by one as they are reached.


def print_checks(checks: Iterable[Check], width: int = 10) -> list[Check]:
    """A line each, and what to do about one that failed. Returns them."""
    seen = []
    for check in checks:
        word = "FAIL" if not check.ok else "skip" if check.skipped else "ok  "
        say(f"{word}  {check.name:<{width}} {check.found}")
        if not check.ok and check.fix:
            say(f"      fix: {check.fix}")
        seen.append(check)
    return seen


# `opmeter doctor`.


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
    from collector.model.stack import BACKENDS
    from jobs.doctor.npu import check_concurrency

    several = [name for name in BACKENDS if name != "cpu"]  # a cpu is all cores of its machine
    if backend not in several:
        raise BadInput(f"--together: expected {' or '.join(several)}, got {backend!r}")
    return int(_failed(check_concurrency(backend)) > 0)


def _failed(checks: Iterable[Check]) -> int:
    return sum(not check.ok for check in print_checks(checks))


# `opmeter selftest`.

_WIDTH = 11


def selftest_verb(
    backend: Annotated[str, typer.Argument(help="npu, cuda or cpu")] = "npu",
    *,
    only: Annotated[
        list[str] | None, typer.Option(help="only this check; may be given again  [all]")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="a profile of your own: its twenty heaviest rows")
    ] = None,
    device: Annotated[int, typer.Option(min=0, help="which device")] = 0,
    root: Annotated[
        str | None, typer.Option(help="a store in which to keep what was proved  [none]")
    ] = None,
    report: Annotated[Path, typer.Option(help="the file to attach to a report")] = Path(
        "opmeter-selftest.zip"
    ),
) -> int:
    """Prove on this machine that its numbers can be believed: a quarter of an hour, a line a check.

    The exit code is 1 where a check failed. The report holds verdicts, versions, journals and
    op_summary files, and nothing secret.
    """
    from collector.host.stack import device_locks, local_stack
    from collector.model.manifest import Verified
    from collector.model.stack import BACKENDS, Runtime
    from collector.replay.lock import DeviceLock, scratch_folder
    from collector.store import open_store
    from jobs.selftest.archive import keep, write_archive
    from jobs.selftest.attribution import proved
    from jobs.selftest.bench import SessionBench
    from jobs.selftest.checks import run_checks
    from jobs.selftest.peaks import keep_peaks, measured_peaks

    if backend not in BACKENDS:
        raise BadInput(f"expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if report.is_dir():
        raise BadInput("--report: expected the name of a file", path=report)
    stack, locks = local_stack(backend), device_locks(backend)
    if device >= len(locks):
        raise BadInput(f"--device {device}: here are {counted(len(locks), 'device')}")
    say(f"{backend}: {stack.version_path}")
    at = environment.utc_now().isoformat(timespec="seconds")
    with DeviceLock(locks[device], "opmeter selftest"), scratch_folder(f"{backend}{device}") as kit:
        bench = SessionBench(backend, stack, device, kit)
        checks = print_checks(run_checks(bench, only=tuple(only or ()), profile=profile), _WIDTH)
        seen = proved(bench.done) if backend == "npu" else []
        peaks = measured_peaks(bench.done, stack, at)
        write_archive(report, kit, checks, backend, stack, seen, peaks)
        is_real = all(session.runtime is Runtime.REAL for session in bench.done)
    if root and seen and is_real:
        key = keep(open_store(root), Verified(stack, tuple(seen), at))
        say(f"{counted(len(seen), 'kernel')} proved: {key}")
    if peaks:
        say(keep_peaks(peaks))
    failed = sum(not check.ok for check in checks)
    say(f"{counted(len(checks), 'check')}, {failed} failed; report: {report}")
    return int(failed > 0)
