"""The stock torch_npu wheel, installed apart from the Python that runs the tests.

Beside torch it would break every `import torch` on a machine without CANN, so it lies in a folder
of its own that only the fake NPU's processes have on their path.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "2.13.0"
_INSTALL_LIMIT_S = 900


class NoFakeCann(Exception):
    """This machine cannot build the fake CANN; the message says why, and what would."""


def cache() -> Path:
    """The folder of what tests build and fetch: $OPMETER_CACHE, or ~/.cache/opmeter."""
    return Path(os.environ.get("OPMETER_CACHE") or Path.home() / ".cache" / "opmeter")


def site() -> Path:
    """The folder that holds the package torch_npu; installed where it is not there yet.

    Raises NoFakeCann where pip cannot fetch it.
    """
    folder = cache() / f"torch_npu-{VERSION}"
    if not (folder / "torch_npu" / "__init__.py").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / "site"
            _install(fresh, folder)
            publish(fresh, folder)
    return folder


def publish(fresh: Path, folder: Path) -> None:
    """Move a complete folder to its place; the first of several processes wins."""
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(fresh, ignore_errors=True)


def _install(target: Path, shown: Path) -> None:
    wanted = f"torch_npu=={VERSION}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    try:
        subprocess.run(
            [*pip, target, wanted],
            capture_output=True,
            text=True,
            check=True,
            timeout=_INSTALL_LIMIT_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or "") if isinstance(error.stderr, str) else ""
        last = (said.strip().splitlines() or [str(error)])[-1]
        command = f"pip install --no-deps --target {shown} {wanted}"
        raise NoFakeCann(f"{wanted} cannot be fetched ({last}); with it: {command}") from error
