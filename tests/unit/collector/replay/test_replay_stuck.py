"""A session that SIGKILL does not end, like one blocked in a driver."""

import subprocess
import sys

import pytest

from collector.replay.process import SessionStuck, end_group
from tests.unit.collector.naming import naming


class Stuck:
    """Resembles a process; there is no such id, and it never ends."""

    pid = 1 << 30

    def __init__(self):
        self.waited_s = []

    def wait(self, timeout=None):
        self.waited_s.append(timeout)
        raise subprocess.TimeoutExpired("session", timeout)


@pytest.mark.fast
def test_wait_for_an_unkillable_session_is_bounded():
    process = Stuck()
    with pytest.raises(SessionStuck, match=naming(process.pid, "60 s", "SIGKILL")):
        end_group(process)
    assert process.waited_s == [60.0]


def test_processes_of_a_session_are_ended_with_it():
    code = "import subprocess; subprocess.Popen(['sleep', '60']).wait()"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    end_group(process)
    assert process.returncode == -9
