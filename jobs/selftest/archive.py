"""The report file to attach to an issue: verdicts, versions, and files of the sessions.

It contains no campaign and no credential; of the environment it has the variables of CANN and the
search paths. It contains the twenty rows of the user's own profile, if one was given.
"""

import io
import os
import platform
import re
import stat
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from collector import __version__
from collector.codec.canonical import readable_json
from collector.codec.errors import HostFault, file_errors
from collector.host.kernel_libraries import installed_version
from collector.host.npus import run_npu_smi
from collector.model import keys
from collector.model.manifest import Verified, verified_from_json, verified_hash, verified_to_json
from collector.model.peaks import MachinePeaks, peaks_as_json
from collector.model.stack import Runtime, Stack
from collector.ops.releases import with_proved
from collector.replay.msprof import OUTPUT
from collector.store.atomic import write_through
from collector.store.base import Store, create_named
from jobs.doctor.machine import Check, check_machine
from jobs.doctor.npu import check_npus, device_nodes

# Files of a session's folder; msprof's other records are large, and useless on other machines.
_KEPT = frozenset(
    {*("op_summary.csv", "journal.jsonl", "session.log", "spec.json", "cases.csv"), "msprof.log"}
)
_MSPROF_LOGS = f"{OUTPUT}/PROF_*/mindstudio_profiler_log/*"
VERDICTS, PROVED, MACHINE = "selftest.json", "verified_on.yaml", "machine.txt"
# CANN's own log: of each process a file, the newest of which belong to the failed sessions.
_CANN_LOG, _CANN_LOGS = "ASCEND_PROCESS_LOG_PATH", "ascend/log"
_LAST_LOGS, _LAST_BYTES = 6, 1 << 18
_PACKAGES = ("torch", "torch_npu", "vllm", "vllm_ascend", "triton_ascend", "numpy")
_VARIABLES = re.compile(
    r"(ASCEND|ATB|HCCL|NPU|PROFILING)_\w+|(LD_LIBRARY_|PYTHON)?PATH|LD_PRELOAD|TMPDIR"
    r"|TASK_QUEUE_ENABLE|TORCH_DEVICE_BACKEND_AUTOLOAD|OPMETER_(LOCKS|VOLUME_BYTES|\w+CONCURRENCY)"
)
_QUERIES = (("info",), ("info", "-t", "board", "-i", "0"), ("info", "-t", "proc-mem", "-i", "0"))


def write_archive(
    path: Path,
    sessions: Path | None,
    checks: Sequence[Check],
    backend: str,
    stack: Stack | None = None,
    proved: Sequence[str] = (),
    peaks: MachinePeaks | None = None,
) -> None:
    """Write the report atomically. There are no `sessions` if none could begin."""
    verdicts = {
        "opmeter": __version__,
        "backend": backend,
        "stack": stack.as_json() if stack else None,
        "checks": [asdict(check) for check in checks],
        "proved": list(proved),
        "peaks": peaks_as_json(peaks) if peaks else None,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(VERDICTS, readable_json(verdicts))
        archive.writestr(MACHINE, "\n".join(_described(backend)))
        if stack:
            archive.writestr(PROVED, with_proved(stack.device, proved))
        for file in _kept(sessions) if sessions else ():
            archive.write(file, str(file.relative_to(sessions or "")))
        for number, log in enumerate(_cann_logs(Path.home()) if backend == "npu" else ()):
            archive.writestr(f"cann/{number}-{log.name}", log.read_bytes()[-_LAST_BYTES:])
    with file_errors(path, "written"):
        write_through(path, buffer.getvalue())


def _kept(sessions: Path) -> Iterator[Path]:
    """Yield files of the sessions' own folders, and msprof's logs below them."""
    for folder in sorted(path for path in sessions.iterdir() if path.is_dir()):
        yield from sorted(file for file in folder.iterdir() if file.name in _KEPT)
        yield from sorted(file for file in folder.glob(_MSPROF_LOGS) if file.is_file())


def _described(backend: str) -> Iterator[str]:
    """Yield lines about this machine: its system, ids, packages, variables, what `opmeter doctor`
    finds and, for NPUs, what npu-smi prints and who may open the device nodes."""
    yield f"system: {platform.platform()}, Python {sys.version}"
    yield f"user {os.getuid()}, groups {sorted({os.getgid(), *os.getgroups()})}"
    for name in _PACKAGES:
        if version := installed_version(name):
            yield f"{name} {version}"
    for name, text in sorted(os.environ.items()):
        if _VARIABLES.fullmatch(name):
            yield f"{name}={text}"
    for check in (*check_machine(), *(check_npus() if backend == "npu" else ())):
        state = "FAIL" if not check.ok else "skip" if check.skipped else "ok"
        yield f"doctor: {state} {check.name}: {check.found}"
    if backend != "npu":
        return
    for node in device_nodes():
        status = node.stat()
        yield f"{node}: {status.st_uid}:{status.st_gid} {stat.filemode(status.st_mode)}"
    for query in _QUERIES:
        yield f"\nnpu-smi {' '.join(query)}"
        try:
            yield run_npu_smi(*query)
        except HostFault as error:
            yield str(error)


def _cann_logs(home: Path) -> list[Path]:
    """Return the newest files of CANN's log."""
    folder = Path(os.environ.get(_CANN_LOG) or home / _CANN_LOGS)
    found = [path for path in folder.rglob("*.log") if os.access(path, os.R_OK)]
    return sorted(found, key=lambda path: path.stat().st_mtime)[-_LAST_LOGS:]


# Results of self-tests in a store: written on real devices only, and shown by `opmeter ops`.


def keep(store: Store, verified: Verified) -> str:
    """Write the results unless they are stored already; return the key."""
    key = keys.verified(verified_hash(verified))
    create_named(store, key, verified_to_json(verified))
    return key


def read_kept(store: Store) -> Iterator[Verified]:
    """Yield all results of real devices.

    Raises BadInput, naming the key, for an invalid object. Objects whose names are not hashes are
    copies by a user, and are skipped."""
    for info in store.list(keys.VERIFIED):
        if not keys.is_ours(info.key):
            continue
        verified = verified_from_json(store.get(info.key), key=info.key)
        if verified.stack.runtime is Runtime.REAL:
            yield verified
