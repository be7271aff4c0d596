"""Stock wheels, installed in folders of their own.

torch_npu next to torch breaks every `import torch` on a machine without CANN. So only processes on
the recording runtime have its folder on their path; the same applies to the old protobuf that
torchair requires.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from collector.codec.errors import OpmeterError

VERSION = "2.13.0"
_PROTOBUF = "3.20.3"
_INSTALL_LIMIT_S = 900


class NoRecordingRuntime(OpmeterError):
    """This machine cannot build the recording runtime; the message has the reason and the fix."""


def cache() -> Path:
    """Return the folder of what is built and downloaded: $OPMETER_CACHE, or ~/.cache/opmeter."""
    return Path(os.environ.get("OPMETER_CACHE") or Path.home() / ".cache" / "opmeter")


def site() -> Path:
    """The folder that holds the package torch_npu; installed where it is not there yet.

    Raises NoRecordingRuntime where pip cannot fetch it.
    """
    return installed("torch_npu", VERSION, "torch_npu/__init__.py")


def protobuf() -> Path:
    """The same of protobuf, with which torchair writes a graph down."""
    return installed("protobuf", _PROTOBUF, "google/protobuf/__init__.py")


def installed(package: str, version: str, witness: str) -> Path:
    folder = cache() / f"{package}-{version}"
    if not (folder / witness).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / "site"
            _install(f"{package}=={version}", fresh, folder)
            move_into_place(fresh, folder)
    return folder


def move_into_place(fresh: Path, folder: Path) -> None:
    """Move a complete folder to its place; the first of several processes wins."""
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(fresh, ignore_errors=True)


def _install(requirement: str, target: Path, shown: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    try:
        subprocess.run(
            [*pip, target, requirement],
            capture_output=True,
            text=True,
            check=True,
            timeout=_INSTALL_LIMIT_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        output = (error.stderr or "") if isinstance(error.stderr, str) else ""
        last = (output.strip().splitlines() or [str(error)])[-1]
        command = f"pip install --no-deps --target {shown} {requirement}"
        raise NoRecordingRuntime(
            f"{requirement} cannot be downloaded ({last}); try: {command}"
        ) from error
