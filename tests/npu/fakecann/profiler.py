"""What the fake msprof does: runs an application, and exports what its launches left.

    msprof --output=DIR [--aic-metrics=GROUP] [--task-time=l0|l1|on] ... APPLICATION ARGUMENTS...
    msprof --output=DIR --application="APPLICATION ARGUMENTS..."
    msprof --export=on --output=PROF_DIR      after a run that did not come to its end

The application's status is this one's, 128 + n where a signal ended it. An option that msprof of
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

from tests.npu.fakecann.calls import read_calls
from tests.npu.fakecann.columns import BLOCK_DIM, BLOCK_NUM
from tests.npu.fakecann.command import Command, Refused, parse
from tests.npu.fakecann.summary import tasks_of, write_summary

_LAUNCHES = "device_0/data/launches.txt"
_SETTINGS = "host/sample.json"


def main(arguments: Sequence[str]) -> int:
    """Run a command line; its exit status."""
    try:
        command = parse(arguments)
    except Refused as error:
        print(f"[ERROR] {error}", file=sys.stderr)
        return 1
    if not command.application:
        return export(command.output)
    folder = start_folder(command)
    status = _run(command.application, folder)
    exported = export(folder)
    return status or exported


def start_folder(command: Command) -> Path:
    """The PROF folder of a run, in which its launches are written down."""
    stamp = time.strftime("%Y%m%d%H%M%S") + f"{time.time_ns() // 1_000_000 % 1000:03d}"
    folder = command.output.absolute() / f"PROF_000001_{stamp}_{_letters(os.getpid())}"
    for part in ("host/data", "device_0/data"):
        (folder / part).mkdir(parents=True)
    settings = asdict(command) | {"output": str(command.output)}
    (folder / _SETTINGS).write_text(json.dumps(settings))
    (folder / _LAUNCHES).touch()
    return folder


def export(folder: Path) -> int:
    """Write the op_summary of a PROF folder; 0 where there is one then."""
    try:
        settings = json.loads((folder / _SETTINGS).read_text())
        tasks = tasks_of(read_calls(folder / _LAUNCHES))
    except (OSError, ValueError) as error:
        print(f"[ERROR] {folder} cannot be exported: {error}", file=sys.stderr)
        return 1
    block = BLOCK_NUM if _major_version() >= 9 else BLOCK_DIM
    stamp = time.strftime("%Y%m%d%H%M%S")
    path = folder / "mindstudio_profiler_output" / f"op_summary_{stamp}.csv"
    if tasks:
        write_summary(tasks, path, settings["metrics"], block, names=settings["level"] != "l0")
    return 0


def _run(application: Sequence[str], folder: Path) -> int:
    """The application's exit status. It inherits input, output and signals."""
    environment = dict(os.environ, FAKE_CANN_LOG=str(folder / _LAUNCHES))
    process = subprocess.Popen(application, env=environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    code = process.wait()
    return code if code >= 0 else 128 - code


def _major_version() -> int:
    return int(os.environ.get("FAKE_CANN_VERSION", "8.5.2").split(".")[0])


def _letters(number: int) -> str:
    """The capital letters at the end of a PROF folder's name."""
    letters = ""
    for _ in range(16):
        number = number * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        letters += chr(ord("A") + (number >> 33) % 26)
    return letters
