"""Process 1 of a container, in its own process namespace where this machine allows one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.executor.pid1 import run_as_pid1

ROOT = Path(__file__).parents[4]

# Each program is process 1. Its one argument specifies its work.
PROGRAM = """
import os, signal, subprocess, sys, time
from jobs.executor.pid1 import run_as_pid1

def ends():
    return 44

def dies():
    os.kill(os.getpid(), signal.SIGKILL)

def leaves():
    sys.exit(43)

def breaks():
    raise RuntimeError("a mistake")

def stops():
    received = []
    signal.signal(signal.SIGTERM, lambda *_: received.append(1))
    print("ready", flush=True)
    while not received:
        time.sleep(0.02)
    return 75

def orphans():
    # A grandchild whose parent ends at once becomes process 1's own, and ends soon after.
    for _ in range(3):
        subprocess.run([sys.executable, "-c",
            "import subprocess; subprocess.Popen(['sleep', '0.1'])"], check=True)
    deadline = time.monotonic() + 20
    while others() and time.monotonic() < deadline:
        time.sleep(0.02)
    return 3 if others() else 0

def others():
    return [p for p in os.listdir("/proc") if p.isdigit() and p not in ("1", str(os.getpid()))]

assert os.getpid() == 1
sys.exit(run_as_pid1(globals()[sys.argv[1]]))
"""


def unshare():
    """The command that makes the rest of the command line process 1; skips the test where that is
    not permitted."""
    if shutil.which("unshare"):
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if os.getuid() != 0:
            command += ["--map-root-user"]
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    pytest.skip("this machine allows no process namespace")


def started(what):
    return subprocess.Popen(
        [*unshare(), sys.executable, "-c", PROGRAM, what],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("what", "code"), [("ends", 44), ("dies", 128 + 9), ("leaves", 43), ("breaks", 1)]
)
def test_exit_code_is_that_of_the_child(what, code):
    process = started(what)
    _, error = process.communicate(timeout=30)
    assert process.returncode == code
    assert (b"a mistake" in error) == (what == "breaks")


@pytest.mark.parametrize(("what", "code"), [("leaves", 43), ("dies", 137)])
def test_example_of_an_exit_code(what, code):
    process = started(what)
    process.communicate(timeout=30)
    assert process.returncode == code


def test_orphans_are_reaped_during_the_work():
    process = started("orphans")
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_signal_is_forwarded_to_the_child():
    process = started("stops")
    assert process.stdout.readline() == b"ready\n"
    (init,) = children(process.pid)
    os.kill(init, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75


def test_early_signal_is_not_lost():
    process = started("stops")
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        for init in children(process.pid):
            if b"-c" in command_of(init):
                os.kill(init, signal.SIGTERM)
        time.sleep(0.005)
    process.communicate(timeout=30)
    # Before Python has reached `run_as_pid1`, the kernel drops the signals that process 1 ignores.
    assert process.returncode == 75


def children(pid):
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.fast
def test_work_runs_directly_if_not_pid_1():
    assert run_as_pid1(lambda: 7) == 7
