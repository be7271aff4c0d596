"""The fake msprof: runs an application, and exports the records of its launches.

    msprof --output=DIR [--aic-metrics=GROUP] [--task-time=l0|l1|on] ... APPLICATION ARGUMENTS...
    msprof --output=DIR --application="APPLICATION ARGUMENTS..."
    msprof --export=on --output=PROF_DIR      after an interrupted run, or of a process that
                                              profiled itself; with --type=db as a separate
                                              database
    msprof --analyze=on --output=PROF_DIR     does nothing, and so does --parse=on

Its exit status is that of the application, 128 + n if a signal ended it. An option that msprof of
CANN 8.5 does not know is refused, as there.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from collector.engine.calls import read_calls
from tests.npu.fakecann.columns import BLOCK_DIM, BLOCK_NUM
from tests.npu.fakecann.command import Command, Refused, parse
from tests.npu.fakecann.damage import damaged
from tests.npu.fakecann.exported import write_kernels
from tests.npu.fakecann.faults import Orders, ordered
from tests.npu.fakecann.physical import PHYSICAL, TIMES, PhysicalTimes
from tests.npu.fakecann.summary import Task, tasks_of, write_summary

_LAUNCHES = "device_0/data/launches.txt"
_PARSED = "device_0/data/launches.txt.complete"  # the parser skips records that are in a database
_DATABASE = "device_0/sqlite/ascend_task.db"
_SETTINGS = "host/sample.json"
_LEVEL_0 = "host/level_0"  # a process requested times alone
_FROM_WITHIN = "host/start_info"  # of a process that profiled itself
# torch_npu checks for a table ten times a second, and gives up if the export ends before that.
_POLLED_S = 0.35


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit status."""
    if list(arguments) == ["--help"]:
        print(f"Usage:\n{__doc__}")
        return 0
    try:
        command = parse(arguments)
    except Refused as error:
        print(f"[ERROR] {error}", file=sys.stderr)
        return 1
    orders = ordered()
    if command.analyzes:
        return 0
    if not command.application:
        for fault in orders.striking("refuse_export"):
            return fault.count
        return export(command.output, orders, command.kind)
    for fault in orders.striking("refuse"):
        return fault.count
    folder = start_folder(command)
    status = _run(command.application, folder, orders)
    if orders.striking("no_export"):
        return status
    exported = export(folder, orders)
    for fault in orders.striking("status"):
        return fault.count
    return status or exported


def start_folder(command: Command) -> Path:
    """Return the PROF folder of a run, in which its launches are recorded."""
    now_ms = time.time_ns() // 1_000_000
    stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
    folder = command.output.absolute() / f"PROF_000001_{stamp}_{_letters(os.getpid())}"
    for part in ("host/data", "device_0/data"):
        (folder / part).mkdir(parents=True)
    settings = asdict(command) | {"output": str(command.output)}
    (folder / _SETTINGS).write_text(json.dumps(settings))
    (folder / _LAUNCHES).touch()
    return folder


def export(folder: Path, orders: Orders, kind: str = "text") -> int:
    """Write the op_summary or the database of a PROF folder; return 0 on success."""
    try:
        settings = json.loads((folder / _SETTINGS).read_text())
        _parse(folder)
        tasks = damaged(tasks_of(read_calls(folder / _LAUNCHES), _physical(orders)), orders)
    except (OSError, ValueError) as error:
        print(f"[ERROR] {folder} cannot be exported: {error}", file=sys.stderr)
        return 1
    if kind == "db":
        write_kernels(tasks, folder / f"msprof_{time.strftime('%Y%m%d%H%M%S')}.db")
        time.sleep(_POLLED_S)
        return 0
    block = _block(orders)
    pieces = _pieces(tasks, max([1, *(fault.count for fault in orders.striking("slices"))]))
    for number, piece in enumerate(pieces):
        stamp = time.strftime("%Y%m%d%H%M%S") + (f"_slice_{number}" if len(pieces) > 1 else "")
        path = folder / "mindstudio_profiler_output" / f"op_summary_{stamp}.csv"
        names = settings["level"] != "l0" and not (folder / _LEVEL_0).exists()
        write_summary(piece, path, settings["metrics"], block, names=names)
    if (folder / _FROM_WITHIN).exists():
        time.sleep(_POLLED_S)
    return 0


def _parse(folder: Path) -> None:
    """Put the launches into a database, unless a mark says that they are there."""
    parsed, database = folder / _PARSED, folder / _DATABASE
    if not parsed.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        database.touch()
        parsed.touch()
    elif not database.exists():
        raise OSError(f"{parsed.name} marks launches that are in no database")


def _physical(orders: Orders) -> PhysicalTimes | None:
    """Return physical durations, if the environment requests them."""
    if os.environ.get(TIMES) != PHYSICAL:
        return None
    return PhysicalTimes([fault.to for fault in orders.striking("ignores")])


def _pieces(tasks: Sequence[Task], count: int) -> list[Sequence[Task]]:
    """Return this many slices of equal length; none of an empty list."""
    length = -(-len(tasks) // count)
    return [tasks[i : i + length] for i in range(0, len(tasks), length)] if tasks else []


def _block(orders: Orders) -> tuple[str, str]:
    ordered_names = [fault.to for fault in orders.striking("block")]
    if ordered_names:
        return {"Dim": BLOCK_DIM, "Num": BLOCK_NUM}[ordered_names[-1]]
    major = int(os.environ.get("FAKE_CANN_VERSION", "8.5.2").split(".")[0])
    return BLOCK_NUM if major >= 9 else BLOCK_DIM


def _run(application: Sequence[str], folder: Path, orders: Orders) -> int:
    """Return the application's exit status. It inherits input and output, and gets the signals that
    end msprof."""
    launch_faults = folder / "host" / "launch_faults.txt"
    launch_faults.write_text(orders.for_launches())
    environment = dict(
        os.environ,
        FAKE_CANN_LOG=str(folder / _LAUNCHES),
        FAKE_CANN_LAUNCH_FAULTS=str(launch_faults),
    )
    process = subprocess.Popen(application, env=environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    code = process.wait()
    return code if code >= 0 else 128 - code


def _letters(number: int) -> str:
    """Return the capital letters at the end of a PROF folder's name."""
    letters = ""
    for _ in range(16):
        number = number * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        letters += chr(ord("A") + (number >> 33) % 26)
    return letters
