"""`opmeter selftest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from collector import surroundings
from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.check_lines import print_checks
from jobs.cli.terminal import say

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
    from collector.replay.lock import DeviceLock, scratch_folder
    from collector.stack import BACKENDS, Runtime
    from collector.store import open_store
    from collector.verified import Verified
    from jobs.selftest.archive import write_archive
    from jobs.selftest.bench import SessionBench
    from jobs.selftest.checks import run_checks
    from jobs.selftest.identity import proved
    from jobs.selftest.kept import keep
    from jobs.selftest.peaks import keep_peaks, measured_peaks

    if backend not in BACKENDS:
        raise BadInput(f"expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if report.is_dir():
        raise BadInput("--report: expected the name of a file", path=report)
    stack, locks = local_stack(backend), device_locks(backend)
    if device >= len(locks):
        raise BadInput(f"--device {device}: here are {counted(len(locks), 'device')}")
    say(f"{backend}: {stack.version_path}")
    at = surroundings.utc_now().isoformat(timespec="seconds")
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
