"""CANN's profiler around a session: its command line, its folders, and the op_summary it writes.

msprof starts the session as its own child, records what the device runs, and parses that when the
child has ended. Options and folders as in Huawei's profiling guide (CANN 8.5, "Profiling Runtime
Data of AI Tasks" and "Profile Data Parsing and Export").
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, OpmeterError
from collector.codec.table import csv_rows, rows_bytes, table_bytes
from collector.host.machine import free_bytes
from collector.model.plan import WARM_UPS, MeasureSettings
from collector.model.vocabulary import (
    ACCELERATOR_CORE,
    COUNTERS,
    INPUT_CELLS,
    NOT_KNOWN,
    OP_STATE,
    OUTPUT_CELLS,
)

logger = logging.getLogger(__name__)

DURATION_GROUP = "PipeUtilization"  # of several groups the one whose pass gives the durations
OUTPUT = "prof"
_EXPORTED = "mindstudio_profiler_output"
_PLACES = ("tools/profiler/bin/msprof", "bin/msprof")
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")

# What a launch leaves on disk: its task and PMU records, host events, the rows made of them.
# Estimated from the sizes of the structures, not measured on a device; the guide wants twenty
# times the raw data to be free.
BYTES_PER_LAUNCH = 2048
_FREE_OVER_EXPECTED = 20
_COMPILING = 1  # the first launch of a case, where that has taken half of its budget
_MARKS = 2
_LEAST_LIMIT_MB, _MOST_LIMIT_MB = 200, (1 << 32) - 1

# One capture of a model was seen to take 7 s of msprof and a minute in all; a session has as many
# launches as some of those. The limit is generous: what it guards against is a parser that hangs.
_PARSE_S = 300.0
_PARSE_S_PER_LAUNCH = 0.005


class NoSpace(OpmeterError):
    """The disk has no room for what a session would record."""


def find_msprof(environment: Mapping[str, str] = os.environ) -> Path:
    """CANN's msprof. Raises BadInput, with the remedy, where there is none."""
    found = shutil.which("msprof", path=environment.get("PATH"))
    if found is not None:
        return Path(found)
    for home in filter(None, map(environment.get, _HOMES)):
        for place in _PLACES:
            if os.access(Path(home, place), os.X_OK):
                return Path(home, place)
    raise BadInput(
        "backend npu: msprof is neither on PATH nor under ASCEND_HOME_PATH: "
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
    )


def record_command(
    msprof: Path, output: Path, group: str, application: Sequence[str], most_mb: int
) -> list[str]:
    """The command that runs an application under msprof. Counters are those of one group. Over
    `most_mb` of records msprof drops the oldest: their cases are measured again."""
    return [
        str(msprof),
        f"--output={output}",
        f"--storage-limit={most_mb}MB",
        # AI Core counters by task, one group of registers at a time.
        "--ai-core=on",
        f"--aic-metrics={group}",
        # `on` is l1: with l0 the rows have neither types nor shapes.
        "--task-time=on",
        *application,
    ]


def export_command(msprof: Path, profile: Path) -> list[str]:
    """The command that parses a PROF_ folder once more."""
    return [str(msprof), "--export=on", f"--output={profile}"]


def expected_launches(cases: int, measure: MeasureSettings, neighbours: int = 0) -> int:
    """How many launches a session of so many cases may have at most; so many `neighbours`, of all
    cases together, run before each of theirs."""
    launches = _COMPILING + WARM_UPS + measure.pilots + measure.most_repeats
    in_context = (neighbours + cases) * launches if neighbours else 0
    return cases * (launches + _MARKS) + in_context


def storage_limit_mb(free: int) -> int:
    """How much a session may record where so many bytes are free: half of them, the other half is
    for what is parsed of it. At least what msprof takes for a limit."""
    return min(_MOST_LIMIT_MB, max(_LEAST_LIMIT_MB, (free // 2) >> 20))


def check_space(directory: Path, launches: int) -> None:
    """Raises NoSpace where a folder has no room for the profile of so many launches."""
    wanted = _FREE_OVER_EXPECTED * BYTES_PER_LAUNCH * launches
    free = free_bytes(directory)
    if free < wanted:
        raise NoSpace(
            f"{directory}: {free >> 20} MiB are free, a session of {launches} launches requires "
            f"{-(-wanted >> 20)} MiB: free disk space, or make sessions shorter (shards: session_s)"
        )


def parse_limit_s(launches: int) -> float:
    """After how long msprof's parsing of so many launches counts as hung."""
    return _PARSE_S + _PARSE_S_PER_LAUNCH * launches


def profiles_of(output: Path) -> list[Path]:
    """The PROF_ folders that msprof made, one for each process that touched a device."""
    return sorted(path for path in output.rglob("PROF_*") if path.is_dir())


def op_summaries(profile: Path) -> list[Path]:
    """The op_summary files of a PROF_ folder: msprof cuts large ones into slices."""
    return sorted((profile / _EXPORTED).glob("op_summary_*.csv"))


def export_missing(msprof: Path, directory: Path, log: Path, limit_s: float) -> None:
    """Have every PROF_ folder without an op_summary parsed; msprof's words go to the log."""
    for profile in profiles_of(directory / OUTPUT):
        if op_summaries(profile):
            continue
        # What a killed parser left half done would be taken for the whole.
        shutil.rmtree(profile / _EXPORTED, ignore_errors=True)
        logger.info("parsing %s again: it has no op_summary", profile)
        with log.open("ab") as stream:
            try:
                subprocess.run(
                    export_command(msprof, profile),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    timeout=limit_s,
                    check=False,
                )
            except (subprocess.TimeoutExpired, OSError) as error:
                logger.warning("%s: %s", profile, error)


def discard_exports(directory: Path) -> None:
    """Forget what msprof has parsed: it was killed over it."""
    for profile in profiles_of(directory / OUTPUT):
        shutil.rmtree(profile / _EXPORTED, ignore_errors=True)


def discard_profile(directory: Path) -> None:
    """Make room: what is kept of a profile is the joined op_summary."""
    shutil.rmtree(directory / OUTPUT, ignore_errors=True)


# Writes op_summary in msprof's own columns (CANN 8.5.2), so that one reader serves every backend.
#
# Counters do not exist on a cpu or a gpu: they are `N/A`, as msprof writes what it did not take.

_COLUMNS = (
    *("Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", OP_STATE),
    *("Task Type", "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)"),
    *("Block Dim", "Mix Block Dim", "HF32 Eligible"),
    *(*INPUT_CELLS, *OUTPUT_CELLS, "Context ID", *COUNTERS),
)
_BLOCK = 1 << 20
_BLOCK_ROWS = 4096
_NO_MODEL = "4294967295"
_NO_COUNTERS = (NOT_KNOWN,) * (1 + len(COUNTERS))  # and no Context ID


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One row: what ran, what it is filed under, and when. `cells` may lack what is not known."""

    name: str
    kernel_type: str
    cells: Mapping[str, str]
    start_ns: int
    duration_ns: int


def write_summary(rows: Iterable[SummaryRow], path: Path, *, device: int = 0) -> str:
    """Write rows, in the order they come, all at once or not at all; the sha256 of the file."""
    data = table_bytes(_COLUMNS, _as_cells(rows, device))
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    return sha256_hex(data)


def join_summaries(slices: Sequence[Path], path: Path) -> bool:
    """One op_summary of several files: a header, then every row in order. Says whether there is
    any row.

    Files of one header are joined byte for byte, msprof's as well as ours. Of several headers the
    first one's columns come first, and what a file does not have is `N/A` in its rows. Raises
    BadInput for files that cannot be joined.
    """
    headers = list(dict.fromkeys(_header_of(piece) for piece in slices))
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        if len(headers) > 1:
            try:
                has_rows = _write_union(slices, headers, stream)
            except UnicodeDecodeError as error:
                raise BadInput("expected an op_summary in UTF-8", path=path.parent) from error
        else:
            stream.write(headers[0] if headers else (",".join(_COLUMNS) + "\n").encode())
            has_rows = sum(_copy_rows(piece, stream) for piece in slices) > 0
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    return has_rows


def _header_of(piece: Path) -> bytes:
    with piece.open("rb") as stream:
        return stream.readline()


def _copy_rows(piece: Path, stream: BinaryIO) -> bool:
    """The rows of a file, whole lines each; whether there was any."""
    with piece.open("rb") as source:
        source.readline()
        ended = True
        has_rows = False
        while block := source.read(_BLOCK):
            stream.write(block)
            has_rows, ended = True, block.endswith(b"\n")
    if not ended:
        stream.write(b"\n")
    return has_rows


def _write_union(slices: Sequence[Path], headers: Sequence[bytes], stream: BinaryIO) -> bool:
    columns = list(dict.fromkeys(name for header in headers for name in _names(header)))
    stream.write(rows_bytes([columns]))
    has_rows = False
    for piece in slices:
        rows = _rows_of(piece)
        while block := list(islice(rows, _BLOCK_ROWS)):
            cells = ([row.get(name, NOT_KNOWN) for name in columns] for row in block)
            stream.write(rows_bytes(cells))
            has_rows = True
    return has_rows


def _rows_of(piece: Path) -> Iterator[Mapping[str, str]]:
    with piece.open(encoding="utf-8-sig", newline="") as source:
        rows = csv_rows(source, path=piece)
        _, names = next(rows, (1, []))
        for _, row in rows:
            if row:
                yield dict(zip(names, row, strict=False))


def _names(header: bytes) -> list[str]:
    text = header.decode("utf-8-sig").rstrip("\r\n")
    return next((row for _, row in csv_rows([text], path="op_summary")), [])


def _as_cells(rows: Iterable[SummaryRow], device: int) -> Iterable[list[str]]:
    ended_ns = 0
    for task, row in enumerate(rows):
        wait_ns = max(0, row.start_ns - ended_ns) if ended_ns else 0
        ended_ns = row.start_ns + row.duration_ns
        yield [
            *(str(device), _NO_MODEL, str(task), "0", row.name, row.kernel_type),
            row.cells.get(OP_STATE) or NOT_KNOWN,
            row.cells.get(ACCELERATOR_CORE) or NOT_KNOWN,
            *(_micro(row.start_ns), _micro(row.duration_ns), _micro(wait_ns)),
            *("0", "0", "NO"),
            *(row.cells.get(name, NOT_KNOWN) for name in (*INPUT_CELLS, *OUTPUT_CELLS)),
            *_NO_COUNTERS,
        ]


def _micro(nanoseconds: int) -> str:
    """Microseconds with three decimals: exact, where a float would lose the last digits."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"
