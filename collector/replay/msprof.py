"""CANN's profiler around a session: its command line, its folders, and the op_summary that it
writes.

msprof starts the session as its own child, records what the device runs, and parses the records
when the child has ended. Options and folders are from Huawei's profiling guide (CANN 8.5,
"Profiling Runtime Data of AI Tasks" and "Profile Data Parsing and Export").
"""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.codec.numbers import microseconds
from collector.codec.table import csv_rows, rows_bytes, table_bytes
from collector.model import vocabulary

logger = logging.getLogger(__name__)

DURATION_GROUP = "PipeUtilization"  # of several groups, the one whose pass provides the durations
OUTPUT = "prof"
_EXPORTED = "mindstudio_profiler_output"
# Of host and of each device_: the databases, and marks beside the records that are in them.
_DATABASES, _MARKS = "*/sqlite", "*/data/*.complete"
# msprof parses by scripts: with the first python3 of PATH, or with this one.
PYTHON_PATH = f"--python-path={sys.executable}"
_PLACES = ("tools/profiler/bin/msprof", "bin/msprof")
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")

# One capture of a model took 7 s in msprof and a minute in all; a session has as many launches as
# several captures. The limit is generous: it detects a parser that hangs.
_PARSE_S = 300.0
_PARSE_S_PER_LAUNCH = 0.005


def find_msprof(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of CANN's msprof. Raises BadInput, with a hint, if there is none."""
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


def msprof_command(
    msprof: Path, output: Path, group: str, application: Sequence[str], most_mb: int
) -> list[str]:
    """Return the command that runs an application under msprof, with the counters of one group.
    Beyond `most_mb` of records msprof drops the oldest; their cases are measured again."""
    return [
        str(msprof),
        f"--output={output}",
        PYTHON_PATH,
        f"--storage-limit={most_mb}MB",
        # AI Core counters per task, one group of registers at a time.
        "--ai-core=on",
        f"--aic-metrics={group}",
        # `on` is l1: with l0 the rows have neither types nor shapes.
        "--task-time=on",
        *application,
    ]


def parse_limit_s(launches: int) -> float:
    """Return the time after which msprof's parsing of this many launches counts as hung."""
    return _PARSE_S + _PARSE_S_PER_LAUNCH * launches


def profiles_of(output: Path) -> list[Path]:
    """Return the PROF_ folders that msprof made, one for each process that used a device."""
    return sorted(path for path in output.rglob("PROF_*") if path.is_dir())


def op_summaries(profile: Path) -> list[Path]:
    """Return the op_summary files of a PROF_ folder: msprof splits large ones into slices."""
    return sorted((profile / _EXPORTED).glob("op_summary_*.csv"))


def export_missing(msprof: Path, directory: Path, log: Path, limit_s: float) -> None:
    """Parse and export every PROF_ folder without an op_summary, as Huawei's guide describes for
    data that was not parsed; msprof's output goes to the log.

    Every export writes the timeline before the summary: neither the collection nor the export of
    msprof (oam-tools 8.5 to 9.2, `running_mode.cpp`) has an option for the summary alone."""
    for profile in profiles_of(directory / OUTPUT):
        if op_summaries(profile):
            continue
        _discard_parsed(profile)
        logger.info("parsing %s again: it has no op_summary", profile)
        for step in ("--parse=on", "--export=on"):
            with log.open("ab") as stream:
                try:
                    subprocess.run(
                        [str(msprof), step, PYTHON_PATH, f"--output={profile}"],
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=stream,
                        timeout=limit_s,
                        check=False,
                    )
                except (subprocess.TimeoutExpired, OSError) as error:
                    logger.warning("%s: %s", profile, error)
                    break


def discard_exports(directory: Path) -> None:
    """Remove what msprof has parsed, after it was killed while parsing."""
    for profile in profiles_of(directory / OUTPUT):
        _discard_parsed(profile)


def _discard_parsed(profile: Path) -> None:
    """Remove what was made from the records of a PROF_ folder: a killed parser leaves incomplete
    tables and databases, and the next one takes them for complete. It skips marked records (msprof
    analysis, `is_valid_original_data`, `is_analyzed_data`), which without the databases are
    lost."""
    for folder in (profile / _EXPORTED, *profile.glob(_DATABASES)):
        shutil.rmtree(folder, ignore_errors=True)
    for made in (*profile.glob("msprof_*.db"), *profile.glob(_MARKS)):
        made.unlink(missing_ok=True)


def discard_profile(directory: Path) -> None:
    """Remove the profile to free disk space: only the joined op_summary is kept."""
    shutil.rmtree(directory / OUTPUT, ignore_errors=True)


# Write op_summary in msprof's own columns (CANN 8.5.2), so that one reader serves every backend.
#
# A CPU or a GPU has no such counters: they are `N/A`, as msprof writes for a counter that it did
# not take.

_COLUMNS = (
    *("Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", vocabulary.OP_STATE),
    *("Task Type", "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)"),
    *("Block Dim", "Mix Block Dim", "HF32 Eligible"),
    *(*vocabulary.INPUT_CELLS, *vocabulary.OUTPUT_CELLS, "Context ID", *vocabulary.COUNTERS),
)
_BLOCK = 1 << 20
_BLOCK_ROWS = 4096
_NO_MODEL = "4294967295"
_NO_COUNTERS = (vocabulary.NOT_KNOWN,) * (1 + len(vocabulary.COUNTERS))  # and no Context ID


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One row: what ran, the kernel type that it is filed under, and its time. `cells` may lack
    unknown columns."""

    name: str
    kernel_type: str
    cells: Mapping[str, str]
    start_ns: int
    duration_ns: int


def write_summary(rows: Iterable[SummaryRow], path: Path) -> str:
    """Write rows, in the given order, atomically; return the sha256 of the file."""
    data = table_bytes(_COLUMNS, _as_cells(rows))
    with _whole_file(path) as stream:
        stream.write(data)
    return sha256_hex(data)


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears, forced to disk, when the block ends."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def join_summaries(slices: Sequence[Path], path: Path) -> bool:
    """Join several op_summary files into one: a header, then every row in order. Return whether
    there is any row.

    Files with equal headers are joined byte for byte, msprof's as well as ours. With different
    headers the columns of the first one precede the others, and a column that a file lacks is `N/A`
    in its rows. Raises BadInput for files that cannot be joined."""
    headers: list[bytes] = []
    for piece in slices:
        with piece.open("rb") as source:
            headers.append(source.readline())
    headers = list(dict.fromkeys(headers))
    with _whole_file(path) as stream:
        if len(headers) < 2:
            stream.write(headers[0] if headers else (",".join(_COLUMNS) + "\n").encode())
            return sum(_copy_rows(piece, stream) for piece in slices) > 0
        try:
            return _write_union(slices, headers, stream)
        except UnicodeDecodeError as error:
            raise BadInput("expected an op_summary in UTF-8", path=path.parent) from error


def has_rows(summary: Path) -> bool:
    """Return whether an op_summary has more than its header."""
    with summary.open("rb") as source:
        source.readline()
        return bool(source.read(1))


def _copy_rows(piece: Path, stream: BinaryIO) -> bool:
    """Copy the rows of a file, with complete lines; return whether there was any."""
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
    texts = (header.decode("utf-8-sig").rstrip("\r\n") for header in headers)
    rows_of_names = (row for text in texts for _, row in csv_rows([text], path="op_summary"))
    columns = list(dict.fromkeys(name for row in rows_of_names for name in row))
    stream.write(rows_bytes([columns]))
    has_rows = False
    for piece in slices:
        rows = _rows_of(piece)
        while block := list(islice(rows, _BLOCK_ROWS)):
            cells = ([row.get(name, vocabulary.NOT_KNOWN) for name in columns] for row in block)
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


def _as_cells(rows: Iterable[SummaryRow]) -> Iterable[list[str]]:
    ended_ns = 0
    for task, row in enumerate(rows):
        wait_ns = max(0, row.start_ns - ended_ns) if ended_ns else 0
        ended_ns = row.start_ns + row.duration_ns
        yield [
            *("0", _NO_MODEL, str(task), "0", row.name, row.kernel_type),
            row.cells.get(vocabulary.OP_STATE) or vocabulary.NOT_KNOWN,
            row.cells.get(vocabulary.ACCELERATOR_CORE) or vocabulary.NOT_KNOWN,
            *(microseconds(row.start_ns), microseconds(row.duration_ns), microseconds(wait_ns)),
            *("0", "0", "NO"),
            *(
                row.cells.get(name, vocabulary.NOT_KNOWN)
                for name in (*vocabulary.INPUT_CELLS, *vocabulary.OUTPUT_CELLS)
            ),
            *_NO_COUNTERS,
        ]
