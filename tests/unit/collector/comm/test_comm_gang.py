"""Ranks that really run, over gloo: their results, and how they end when one of them fails."""

import os
import signal
import socket
import threading
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.comm import gang
from collector.comm.bench_plan import BenchPlan, Mode, collectives_of
from collector.comm.gang import GangFailed, GangWork, RanksHang, Rendezvous, checked, run_gang
from collector.comm.measured import bench_results
from collector.comm.rank_files import rank_states, read_rank_results
from collector.ranks.collective import OPERATIONS
from collector.ranks.topology import Grid
from tests.unit.collector.naming import names, naming
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

GRID = Grid((48, 8, 2))


def plan_of(operations, sizes, group_sizes, world, *, rounds=1, budget_s=0.001):
    cases, left_out = collectives_of(
        operations, sizes, "bfloat16", group_sizes, [], grid=GRID, world=world
    )
    assert not left_out
    return BenchPlan("cpu", GRID, world, Mode.EVENT, rounds, budget_s, (3, 1_000_000), tuple(cases))


def measured(plan, folder):
    run_gang(GangWork(plan), Rendezvous(plan.world), folder)
    found = bench_results(plan, read_rank_results(folder), {})
    assert not found.wrong
    assert not found.left_out
    return found.measured


def endless(world):
    """A case that takes an hour, so that it ends only by the tested cause."""
    return plan_of(["all_reduce"], [1024], [world], world, budget_s=3600.0)


def disturb(folder, rank, number):
    """Send a signal to a rank that is measuring."""

    def measuring():
        return [
            state.process.pid
            for state in rank_states(folder)
            if state.rank == rank and "all_reduce" in state.step and state.process
        ]

    def wait_and_send():
        wait_for(measuring)
        os.kill(*measuring(), number)

    thread = threading.Thread(target=wait_and_send, daemon=True)
    thread.start()
    return thread


def wait_for_their_end(folder):
    """Killed processes are gone in a moment, and on a busy machine in seconds."""
    wait_for(lambda: not any(one.process and one.process.is_alive for one in rank_states(folder)))


def test_every_operation_is_right_in_groups_of_two_and_four_ranks(tmp_path):
    plan = plan_of(list(OPERATIONS), [64, 1 << 20], [2, 4], 4, rounds=2)
    found = measured(plan, tmp_path)
    assert len(found) == len(OPERATIONS) * 2 * 3  # two alone, two at once, four
    for one in found:
        assert len(one.timings) == 2
        assert one.duration_us > 0
        assert all(group.iterations >= 3 for group in one.all_groups())
        assert len(one.timings[0]) == (2 if one.collective.together else 1)
    wait_for_their_end(tmp_path)


# Like a library that changes its protocol at this many bytes; read by every rank when it starts.
SLOW_FROM_1500_BYTES = """
import os, time
if "RANK" in os.environ:
    from collector.comm.measuring_rank import Buffers
    made = Buffers._call
    def slow(self):
        call = made(self)
        if self._what.message_bytes < 1500:
            return call
        return lambda: (time.sleep(0.2), call())
    Buffers._call = slow
"""


def test_jump_is_located_during_the_run(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW_FROM_1500_BYTES)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    folder = tmp_path / "bench"
    folder.mkdir()
    plan = replace(plan_of(["all_reduce"], [1024, 2048], [2], 2), jump_factor=1.1)
    found = {one.collective.message_bytes: one for one in measured(plan, folder)}
    located = {size for size, one in found.items() if one.jump.startswith("located")}
    first_slow = min(size for size in found if size >= 1500)
    assert first_slow in located
    assert first_slow < 1.1 * max(size for size in found if size < 1500)


# Rank 1 is 50 ms late for every call.
COMES_LATE = """
import os, time
if os.environ.get("RANK") == "1":
    from collector.comm.timed_calls import ReferenceClock
    made = ReferenceClock.begin_together
    def late(self, after_us):
        made(self, after_us)
        time.sleep(0.05)
    ReferenceClock.begin_together = late
"""


def test_late_rank_increases_the_skew_and_not_the_duration(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(COMES_LATE)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    folder = tmp_path / "bench"
    folder.mkdir()
    plan = replace(plan_of(["all_reduce"], [1024], [2], 2), iterations=(9, 9))
    (one,) = measured(plan, folder)
    ((timing,),) = one.timings
    assert timing.skew_us > 45_000
    assert timing.rank_max_us > 40_000  # of rank 0, which waited in the call
    assert one.duration_us < 25_000


def test_killed_rank_ends_the_gang_and_is_named(tmp_path):
    disturb(tmp_path, 1, signal.SIGKILL)
    with pytest.raises(GangFailed, match=naming("rank 1", "SIGKILL", "all_reduce", 1024)):
        run_gang(GangWork(endless(2)), Rendezvous(2), tmp_path)
    wait_for_their_end(tmp_path)


REPORT = """
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : {other} (pid: 2)
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 1)
"""


@pytest.mark.parametrize(("other", "named"), [(-9, "rank 1"), (-15, "rank 0"), (1, "rank 0")])
def test_rank_ended_by_a_signal_is_named_before_ranks_that_lost_it(tmp_path, other, named):
    """SIGTERM is sent by torchrun to the remaining ranks."""
    (tmp_path / "torchrun.log").write_text(REPORT.format(other=other))
    assert names(gang._reason(1, [], tmp_path), named)


def hang_of(plan, folder, patience_s=2.0):
    """Return why a hanging gang was ended."""
    with pytest.raises(RanksHang) as error:
        run_gang(GangWork(plan, patience_s=patience_s), Rendezvous(plan.world), folder)
    wait_for_their_end(folder)
    return str(error.value)


def test_stopped_rank_is_named_and_the_log_has_the_stacks_of_the_others(tmp_path, caplog):
    disturb(tmp_path, 1, signal.SIGSTOP)
    reason = hang_of(endless(2), tmp_path)
    assert names(reason, "2 s", "rank 1", "all_reduce", 1024) and "File" not in reason
    messages = [record.getMessage() for record in caplog.records]
    of_rank = [[one for one in messages if f"rank-{rank}.stacks" in one] for rank in (0, 1)]
    assert ["torch/distributed" in one for one in of_rank[0]] == [True]
    assert ["File" in one for one in of_rank[1]] == [False]


# Rank 1 reaches its first call, and then does something else for an hour.
NEVER_CALLS = """
import os
if os.environ.get("RANK") == "1":
    from collector.comm.measuring_rank import Buffers
    def never():
        {wait}
    Buffers._call = lambda self: never
"""


@pytest.mark.parametrize(
    "wait",
    ["import time; time.sleep(3600)", "import ctypes; ctypes.PyDLL(None).sleep(3600)"],
    ids=["python", "native"],
)
def test_rank_that_never_calls_is_named(tmp_path, monkeypatch, wait):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NEVER_CALLS.format(wait=wait))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    folder = tmp_path / "bench"
    folder.mkdir()
    reason = hang_of(plan_of(["all_reduce"], [1024], [2], 2), folder)
    assert names(reason, "rank 1", "all_reduce", 1024, "in never")


def on_two_nodes(plans, folder):
    """Run two nodes on this machine, of one rank each; return why each failed, by its number."""
    folders = [folder / "first", folder / "second"]
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    reasons = {}

    def node(at):
        folders[at].mkdir()
        try:
            run_gang(GangWork(plans[at]), Rendezvous(1, 2, at, "127.0.0.1", port), folders[at])
        except GangFailed as error:
            reasons[at] = str(error)

    threads = [threading.Thread(target=node, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return reasons


def test_two_nodes_measure_together_and_the_first_has_the_results(tmp_path):
    plan = plan_of(["all_reduce"], [1024], [2], 2)
    assert on_two_nodes([plan, plan], tmp_path) == {}
    (one,) = bench_results(plan, read_rank_results(tmp_path / "first"), {}).measured
    assert one.duration_us > 0
    assert read_rank_results(tmp_path / "second") == []


def test_nodes_with_different_options_are_refused(tmp_path):
    plan = plan_of(["all_reduce"], [1024], [2], 2)
    reasons = on_two_nodes([plan, replace(plan, rounds=2)], tmp_path)
    assert sorted(reasons) == [0, 1]
    assert any("options" in reason for reason in reasons.values())


@pytest.mark.parametrize(
    ("meeting", "named"),
    [
        (Rendezvous(2, 2, 2, master_port=1), ("--node-rank", 2, 1)),
        (Rendezvous(2, 2), ("--master-port",)),
        (Rendezvous(2, master_addr="no.such.host.invalid"), ("--master-addr", "no.such.host")),
    ],
)
def test_ranks_without_a_common_address_are_not_started(meeting, named):
    with pytest.raises(BadInput, match=naming(*named)):
        checked(meeting)


def test_port_in_use_is_reported_before_any_rank_starts():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=naming("--master-port", port, "Address already in use")):
            checked(Rendezvous(2, master_port=port))
    assert checked(Rendezvous(2)).master_port > 0
