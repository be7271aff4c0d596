"""Ranks that probe: a region is found, and only a process that a try kills is started again."""

import json
from math import log2

import pytest

from collector.comm.gang import GangFailed, Rendezvous
from collector.comm.moe.benching import probe
from collector.comm.moe.probe_plan import ProbeGrid, ProbePlan, read_tries
from collector.comm.rank_files import rank_states
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.slow

GRID = ProbeGrid((8, 16, 32, 64), (2, 4, 8), (1, 2))


def plan_of(**changed):
    return ProbePlan(
        **{
            "backend": "cpu",
            "world": 2,
            "hidden": 64,
            "intermediate": 32,
            "weight_bits": 8,
            "dtype": "DT_BF16",
            "grid": GRID,
            "patience_s": 30.0,
            **changed,
        }
    )


def tries_of(plan, folder):
    seen = []
    probe(plan, Rendezvous(plan.world), folder, seen.append)
    tries = read_tries(folder)
    assert seen[-1] <= len(tries)
    assert not any(state.process and state.process.is_alive for state in rank_states(folder))
    return tries


def processes(folder):
    """Return the processes of each rank in which it tried, in order."""
    found = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        pids = [line["prober"] for line in lines if line.get("prober")]
        found[path.stem] = list(dict.fromkeys(pids))
    return found


def test_a_limit_of_memory_is_found_without_losing_a_process(tmp_path):
    plan = plan_of()
    limit = plan.call((2, 1, 0)).working_bytes
    plan = plan_of(memory_bytes=limit)
    tries = tries_of(plan, tmp_path)
    region = plan.region(tries)
    assert region.open_points == 0
    for point in [(m, e, k) for m in range(4) for e in range(3) for k in range(2)]:
        assert region.is_accepted(point) == (plan.call(point).working_bytes <= limit), point
    refused = [one for one in tries if not one.is_accepted]
    assert refused
    assert all(names(one.reason, "MiB") for one in refused)
    assert not any(one.restarted for one in tries)
    assert all(len(pids) == 1 for pids in processes(tmp_path).values())


FAULTY = """
import os, signal, sys, time
from pathlib import Path
from collector.comm.moe.prober import main
from collector.comm.moe.trials import prepare_reference

def prepare(case, rank, device):
    call, run = case.call, prepare_reference(case, rank, device)
    if rank == 1 and call.tokens > 32:
        return lambda: os.kill(os.getpid(), signal.SIGSEGV)
    if rank == 1 and call.choices > 1:
        time.sleep(3600)
    if rank == 0 and call.experts > 4:
        return raising
    return run

def raising():
    raise RuntimeError("the kernel says no")

main(Path(sys.argv[1]), prepare)
"""


def test_rank_that_dies_hangs_or_raises_counts_as_refusal_and_probing_continues(
    tmp_path, monkeypatch
):
    (tmp_path / "faulty_prober.py").write_text(FAULTY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    folder = tmp_path / "probe"
    folder.mkdir()
    plan = plan_of(prober="faulty_prober", patience_s=20.0)
    tries = tries_of(plan, folder)
    assert len(tries) <= 2 * log2(4 * 3 * 2)
    limits = {(one.experts, one.choices): one.accepted for one in plan.region(tries).limits()}
    assert limits == {
        (2, 1): 32,
        (4, 1): 32,
        (8, 1): None,
        (2, 2): None,
        (4, 2): None,
        (8, 2): None,
    }
    found = {one.reason: one.restarted for one in tries if not one.is_accepted}
    assert len(found) == 3
    for named, restarted in [
        (("rank 1", "SIGSEGV"), (1,)),
        (("rank 1", "20 s"), (1,)),
        (("rank 0", "the kernel says no"), ()),
    ]:
        assert [again for reason, again in found.items() if names(reason, *named)] == [restarted]
    assert [len(pids) for pids in processes(folder).values()] == [1, 3]


def test_a_prober_that_never_starts_ends_the_probe_with_its_rank(tmp_path, monkeypatch):
    with pytest.raises(GangFailed, match=naming("rank 0", 1)):
        tries_of(plan_of(prober="no_such_module"), tmp_path)
