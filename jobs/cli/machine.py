"""Commands about this machine: doctor, selftest and stack."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector import environment
from collector.codec.canonical import canonical_json
from collector.codec.errors import BadInput, DeviceBusy, HostFault, NoDevice
from collector.codec.text import counted, did_you_mean
from collector.model import keys
from collector.model.stack import BACKEND_SYNONYMS, PROFILED, Runtime
from collector.store import open_store
from collector.store.opening import DEFAULT_ROOT
from jobs.cli.options import RootOption, check_backend
from jobs.cli.terminal import print_json, say

if TYPE_CHECKING:
    from jobs.doctor.machine import Check


# `opmeter stack`.


def stack_command(
    *,
    backend: Annotated[str, typer.Option(help="npu, cuda, cpu or events")] = "npu",
    root: Annotated[
        str | None,
        typer.Option(help="also check that this store responds, and what a worker imports"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="name of the NPU, if its chip has several")
    ] = None,
    limit: Annotated[float, typer.Option(help="time limit in seconds; 0 for none")] = 0.0,
) -> None:
    """Print the stack of this machine as one line of JSON.

    \b
    Example:
      opmeter stack --backend cpu
    """
    from collector.host.stack import local_stack
    from jobs.doctor.imports import NOT_IN_WORKERS, find_imports

    if device is not None and backend != "npu":
        raise BadInput(f"--device: only for backend npu, got backend {backend}")
    with _ending_after(limit):
        if root is not None:
            store = open_store(root, location="--root")
            next(iter(store.list(keys.CAMPAIGNS)), None)  # which workers have the right to
            typer.echo(f"store {store.url} responds", err=True)
            typer.echo(find_imports(NOT_IN_WORKERS), err=True)
        try:
            found = local_stack(backend, device)
        except NoDevice as error:
            advice = "without NPUs and GPUs: opmeter stack --backend cpu"
            raise NoDevice(f"{error}; {advice}") from error
    typer.echo(canonical_json(found.as_json()).decode())


@contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """End this process with a message after a time limit: a hanging driver does not return, and an
    alarm does not kill process 1 of a container."""

    def give_up() -> None:
        typer.echo(f"no response within {seconds:g} s: the driver or the store hangs", err=True)
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


# Checks are printed one by one, as soon as each is done.


def print_checks(checks: Iterable[Check], width: int = 10) -> list[Check]:
    """Print a line for each check, and the fix of one that failed. Return the checks."""
    seen = []
    for check in checks:
        word = "FAIL" if not check.ok else "skip" if check.skipped else "ok  "
        say(f"{word}  {check.name:<{width}} {check.found}")
        if not check.ok and check.fix:
            say(f"      fix: {check.fix}")
        seen.append(check)
    return seen


# `opmeter doctor`.


def doctor_command(
    *,
    root: RootOption = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="check a cluster, and the store as pods reach it")
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option(help="namespace of campaigns, with --cluster  [default: the context's]"),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="site profile, with --cluster  [default: that of a campaign there]"),
    ] = None,
    together: Annotated[
        str | None,
        typer.Option(help="backend (npu, cuda) whose devices are tested for disturbing each other"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the checks as JSON")] = False,
) -> int:
    """Check this machine and the store, or a cluster, and print a fix for each problem.

    The exit code is 1 if a check failed.

    \b
    Examples:
      opmeter doctor
      opmeter doctor --cluster --site a3-800t
    """
    from jobs.doctor.machine import describe_stack

    checks, is_here = _checks(root, cluster, namespace, site, together)
    seen = list(checks) if as_json else print_checks(checks)
    stack = list(describe_stack()) if is_here else []
    if as_json:
        print_json({"checks": seen, "stack": stack})
    else:
        for line in stack:
            say(f"stack  {line}")
    return int(any(not check.ok for check in seen))


def _checks(
    root: str | None, cluster: bool, namespace: str | None, site: str | None, together: str | None
) -> tuple[Iterable[Check], bool]:
    """The requested checks, and whether they are of this machine and the store."""
    from jobs.doctor.imports import check_imports
    from jobs.doctor.machine import check_machine, check_store
    from jobs.doctor.npu import check_concurrency, check_npus, is_npu_host

    if together is not None:
        several = [name for name in PROFILED if name != "cpu"]  # a cpu is all cores of its machine
        if together not in several:
            hint = did_you_mean(together, several, BACKEND_SYNONYMS)
            raise BadInput(f"--together: expected {' or '.join(several)}, got {together!r}{hint}")
        return check_concurrency(together), False
    if cluster:
        from jobs.doctor.cluster import check_cluster

        return check_cluster(namespace, site, root), False
    npus = check_npus() if is_npu_host() else ()
    store = check_store(root or DEFAULT_ROOT)
    return chain(check_machine(), check_imports(), npus, store), True


# `opmeter selftest`.

_WIDTH = 11


def selftest_command(
    backend: Annotated[str, typer.Argument(help="npu, cuda or cpu")] = "npu",
    *,
    only: Annotated[
        list[str] | None, typer.Option(help="name of a check; may be given again  [default: all]")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="profile whose twenty most expensive rows are measured too")
    ] = None,
    index: Annotated[int, typer.Option(min=0, help="index of the device")] = 0,
    root: Annotated[
        str | None,
        typer.Option(help="store for the results, see `opmeter ops --root`  [default: none]"),
    ] = None,
    report: Annotated[Path, typer.Option(help="report file")] = Path("opmeter-selftest.zip"),
) -> int:
    """Test on this machine that its measurements can be trusted.

    It takes about fifteen minutes and prints a line for each check. The exit code is 1 if a check
    failed, or another run uses the device. The report contains verdicts, versions, logs, journals
    and op_summary files.

    \b
    Examples:
      opmeter selftest npu
      opmeter selftest cpu --only attribution
    """
    from collector.codec.scratch import scratch_folder
    from collector.host.stack import device_locks, local_stack
    from collector.model.manifest import Verified
    from collector.replay.lock import DeviceLock
    from jobs.doctor.machine import Check
    from jobs.selftest.archive import keep, write_archive
    from jobs.selftest.attribution import proved
    from jobs.selftest.bench import SessionBench
    from jobs.selftest.checks import check_environment, run_checks
    from jobs.selftest.peaks import keep_peaks, measured_peaks

    check_backend(backend, "")
    if report.is_dir():
        raise BadInput("--report: expected the name of a file", path=report)
    try:
        stack, locks = local_stack(backend), device_locks(backend)
    except (BadInput, HostFault) as error:  # no session can begin: report what keeps it from that
        checks = print_checks([check_environment(backend)], _WIDTH)
        write_archive(report, None, checks, backend)
        say(f"no session can begin: {error}; report: {report}")
        return 2 if isinstance(error, (BadInput, NoDevice)) else 1
    if index >= len(locks):
        raise BadInput(f"--index: expected an index below {len(locks)}, got {index}")
    say(f"{backend}: {stack.version_path}")
    at = environment.utc_now().isoformat(timespec="seconds")
    with ExitStack() as held:
        try:
            held.enter_context(DeviceLock(locks[index], "opmeter selftest"))
        except DeviceBusy as error:
            busy = Check("device", False, error.found, error.fix)
            checks = print_checks([check_environment(backend), busy], _WIDTH)
            write_archive(report, None, checks, backend, stack)
            say(f"no session can begin; report: {report}")
            return 1
        kit = held.enter_context(scratch_folder(f"{backend}{index}"))
        bench = SessionBench(backend, stack, index, kit)
        checks = print_checks(run_checks(bench, only=tuple(only or ()), profile=profile), _WIDTH)
        seen = proved(bench.done) if backend == "npu" else []
        peaks = measured_peaks(bench.done, stack, at)
        write_archive(report, kit, checks, backend, stack, seen, peaks)
        is_real = all(session.runtime is Runtime.REAL for session in bench.done)
    if root and seen and is_real:
        key = keep(open_store(root), Verified(stack, tuple(seen), at))
        say(f"{counted(len(seen), 'kernel')} verified: {key}")
    if peaks:
        say(keep_peaks(peaks))
    failed = sum(not check.ok for check in checks)
    say(f"{counted(len(checks), 'check')}, {failed} failed; report: {report}")
    return int(failed > 0)
