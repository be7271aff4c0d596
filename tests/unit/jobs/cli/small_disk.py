"""Commands that write to a disk without space, or one that is read-only.

`python -m tests.unit.jobs.cli.small_disk FOLDER ROOM` runs them in a mount namespace of its own,
which requires root. FOLDER has the inputs. The disk has ROOM bytes left, or is read-only if that
is negative. Prints what each command did as JSON.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

from collector.codec.errors import OpmeterError
from collector.comm.comm_table import replace_table
from collector.database.op_mapping_writing import write_mapping
from collector.engine import engine_process
from tests.unit.collector.engine.test_engine_calls import GATHER, MATMUL, recording_of
from tests.unit.jobs.cli.in_process import opmeter_here

NAMESPACE = ("unshare", "--mount", "--propagation", "private")
_SIZE = 1 << 22
_TREES = ("fia", "grid", "mapped")  # which commands change in place
COMMANDS = {
    "report db": ("report", "db", "--root", "data", "-o", "DISK/report"),
    "report campaign": ("report", "campaign", "made", "--root", "data", "-o", "DISK/page"),
    "grid": ("tree", "grid", "--database-path", "DISK/grid", "--rows", "2000"),
    "parse": ("tree", "parse", "--profile", "serving", "--database-path", "DISK/tree"),
    "fia-backfill": (
        *("tree", "fia-backfill", "--database-path", "DISK/fia"),
        *("--jsonl-path", "values.jsonl"),
    ),
    "trace to-csv": ("trace", "to-csv", "trace.json", "-o", "DISK/events.csv"),
    "trace to-csv by kernel": ("trace", "to-csv", "trace.json", "--by-kernel", "DISK/kernels"),
    "model record": ("model", "record", "qwen3-32b", "--output", "DISK/recording.json.gz"),
    "db export": ("db", "export", "--root", "data", "-o", "DISK/systems"),
    "pull": ("db", "pull", "DISK/pulled", "--root", "data"),
    "microbench": ("tree", "microbench", "--database-path", "DISK/grid", "--backend", "cpu"),
    "comm": (
        *("comm", "--backend", "cpu", "--num-devices", "2", "--bytes-grid", "quick"),
        *("--do-run", "--output-dir", "DISK/hccl"),
    ),
}
FUNCTIONS = {  # what commands call after minutes of measurements
    "a table of comm": lambda disk: replace_table(disk / "hccl/all_reduce.csv", bytes(1 << 20)),
    "op_mapping.yaml": lambda disk: write_mapping(disk / "mapped"),
}


def _mounted(folder: Path, room: int) -> Path:
    """Mount the disk with the trees, and fill it."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(disk))
    subprocess.run(mount, check=True)
    for name in _TREES:
        shutil.copytree(folder / name, disk / name)
    if room < 0:
        subprocess.run(("mount", "-o", "remount,ro", str(disk)), check=True)
        return disk
    status = os.statvfs(disk)
    (disk / "other").write_bytes(bytes(status.f_bavail * status.f_bsize - room))
    return disk


def _content(disk: Path) -> dict[str, bytes]:
    """Return the files, and temporary folders. A folder without files is left where several files
    would be written one by one."""
    return {
        str(path.relative_to(disk)): path.read_bytes() if path.is_file() else b""
        for path in disk.rglob("*")
        if path.is_file() or path.name.startswith(".")
    }


def _command(words: tuple[str, ...], folder: Path, disk: Path) -> dict[str, object]:
    placed = [word.replace("DISK", str(disk)) for word in words]
    done = opmeter_here(*placed, cwd=folder)
    return {"code": done.returncode, "said": done.stderr}


def _function(name: str, disk: Path) -> dict[str, object]:
    try:
        FUNCTIONS[name](disk)
    except OpmeterError as error:
        return {"code": 2, "said": f"opmeter: {error}\n"}
    return {"code": 0, "said": ""}


def main(folder: Path, room: int) -> None:
    disk = _mounted(folder, room)
    recorded = recording_of(MATMUL, GATHER)
    with mock.patch.object(engine_process, "record_model", lambda config, settings, work: recorded):
        for name in (*COMMANDS, *FUNCTIONS):
            before, begin_s = _content(disk), time.monotonic()
            is_command = name in COMMANDS
            done = _command(COMMANDS[name], folder, disk) if is_command else _function(name, disk)
            after = _content(disk)
            changed = sorted(
                key for key in {**before, **after} if before.get(key) != after.get(key)
            )
            took_s = time.monotonic() - begin_s
            print(
                json.dumps({"name": name, **done, "changed": changed, "took_s": took_s}), flush=True
            )
            for key in changed:  # the next command has the same space
                (disk / key).unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
