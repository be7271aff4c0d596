"""Run a program with a capture inside, and judge what it left. It needs no torch."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from collector.capture.injection import VARIABLE, Injection
from collector.capture.settings import CaptureSettings
from collector.capture.verdict import CAPTURE_FILE
from collector.codec.errors import BadInput, file_errors

_SITE = Path(__file__).parent / "site"  # its sitecustomize attaches the capture
_SIGNALLED = 128  # plus the signal: the exit code of a shell for a program that a signal ended

_DEVICES = ("npu", "cuda", "cpu")


def run_captured(
    command: Sequence[str], injection: Injection, environment: Mapping[str, str] = os.environ
) -> int:
    """Run a program and its children with a capture; return its exit code as a shell does.

    Raises BadInput before the program starts for
    options that do not fit, for a folder that has a capture, and for a program that is none."""
    settings = CaptureSettings(Path(injection.folder), **injection.options)
    settings.check(environment)
    if injection.device is not None and injection.device not in _DEVICES:
        raise BadInput(f"--device: expected npu, cuda or cpu, got {injection.device!r}")
    if next(settings.folder.glob(CAPTURE_FILE.format(worker="*")), None) is not None:
        raise BadInput("expected a folder without a capture", path=settings.folder)
    with file_errors(settings.folder, "created"):  # now: the program may run for hours
        settings.folder.mkdir(parents=True, exist_ok=True)
    environment = {**environment, VARIABLE: injection.to_variable()}
    paths = [str(_SITE), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        program = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise BadInput(f"{command[0]}: cannot be started: {error.strerror}") from error
    code = _waited(program)
    return code if code >= 0 else _SIGNALLED - code


def _waited(program: subprocess.Popen[bytes]) -> int:
    """Wait for a program. SIGTERM is passed on; a terminal sends Ctrl-C to the program, too."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: program.terminate()),
    }
    try:
        return program.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
