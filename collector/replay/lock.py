"""One run a device: two would disturb each other, and neither would know."""

import fcntl
import json
import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from collector.errors import DeviceBusy


def lock_directory() -> Path:
    """Where this user's locks lie: not shared with other users, and gone after a reboot."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "opmeter-locks"
    return Path(tempfile.gettempdir()) / f"opmeter-locks-{os.getuid()}"


class DeviceLock:
    """Holds a device (`cpu0`, `cuda1`) while the block runs; the kernel frees it with the
    process, however that ends. `purpose` tells others what for."""

    def __init__(self, device: str, purpose: str, directory: Path | None = None):
        self._device = device
        self._purpose = purpose
        self._directory = directory or lock_directory()
        self._descriptor: int | None = None

    def __enter__(self) -> "DeviceLock":
        """Raises DeviceBusy, naming the holder, where another process has it."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._directory / f"{self._device}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            raise DeviceBusy(f"{self._device} is in use by {holder} (lock {path})") from error
        note = {"pid": os.getpid(), "command": " ".join(sys.argv), "purpose": self._purpose}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode()[:4096], 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _holder(note: bytes) -> str:
    """Who holds a lock, from its file; it may be read while the holder is writing it."""
    try:
        value = json.loads(note)
        return f"process {value['pid']} ({value['purpose']}: {value['command']})"
    except (ValueError, KeyError, TypeError):
        return "another process that has just started"
