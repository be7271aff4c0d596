"""The owners of the processes on a device, from a folder like /proc."""

import pytest

from collector.host.processes import others_among

pytestmark = pytest.mark.fast

SHELL, RUN, WORKER, MSPROF, OWN, CHILD = 50, 60, 70, 80, 90, 95
NEIGHBOUR, SIBLING = 55, 91


@pytest.fixture
def proc(tmp_path):
    """One run with two workers, started from a shell that started something else too."""
    for pid, parent, command in (
        (1, 0, "/sbin/init"),
        (SHELL, 1, "-bash"),
        (RUN, SHELL, "/opt/bin/python /opt/bin/opmeter run c.yaml"),
        (WORKER, RUN, "python -m collector.worker"),
        (MSPROF, WORKER, "/cann/msprof --output=x python -m collector.replay.session x"),
        (OWN, MSPROF, "python -P -m collector.replay.session x"),
        (CHILD, OWN, "npu-smi info"),
        (SIBLING, RUN, "python -P -m collector.replay.session y"),
        (NEIGHBOUR, SHELL, "python train.py (odd) name"),
    ):
        (tmp_path / str(pid)).mkdir()
        name = command.split()[0]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name} )) S {parent} 1 1 0")
        (tmp_path / str(pid) / "cmdline").write_text(command.replace(" ", "\0"))
    return tmp_path


def test_processes_of_the_same_run_are_own_and_others_of_its_shell_are_not(proc):
    ours = {OWN, MSPROF, WORKER, RUN, CHILD, SIBLING}
    assert others_among(ours, OWN, proc) == frozenset()
    assert others_among({*ours, NEIGHBOUR, SHELL}, OWN, proc) == {NEIGHBOUR, SHELL}


def test_unreadable_process_is_another_process(proc):
    assert others_among([OWN, 4711], OWN, proc) == {4711}


def test_processes_of_another_pid_namespace_are_unknown(proc):
    assert others_among([NEIGHBOUR], OWN, proc) is None
    assert others_among([], OWN, proc) is None
