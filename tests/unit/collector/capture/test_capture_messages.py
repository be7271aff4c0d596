"""Messages between the ranks of a program on a CPU are those of a profile."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")

from collector.capture.dispatched import DispatchedCalls, Step, write_profile  # noqa: E402
from collector.capture.messages import exposed_ns, profiled_spans  # noqa: E402
from collector.codec.errors import BadInput  # noqa: E402
from collector.comm.profiled import profiled_collectives  # noqa: E402
from collector.profiles.kernel_details import read_profile  # noqa: E402
from collector.profiles.step_trace import read_step_trace  # noqa: E402
from collector.profiles.transfers import CALL, find_transfers, read_transfers  # noqa: E402
from collector.ranks.topology import Grid  # noqa: E402

pytestmark = pytest.mark.fast
distributed = torch.distributed


@pytest.fixture
def pair():
    """Make this process rank 0 of two, which send nothing."""
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")  # registers its backend
    distributed.init_process_group("fake", rank=0, world_size=2, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


def profiled(run, folder):
    """Return the calls of a function, and write its profile."""
    with DispatchedCalls() as calls:
        calls.step = 1
        run()
        calls.step = None
    end_ns = calls.launches[-1].start_ns + 10**9
    steps = [Step(1, calls.launches[0].start_ns, end_ns)]
    write_profile(calls.launches, folder / "one_20261130_ascend_pt", steps)
    return calls


def collectives():
    x, pair, half = torch.zeros(8), torch.zeros(16), torch.zeros(8, dtype=torch.bfloat16)
    distributed.all_reduce(x)
    distributed.distributed_c10d._get_default_group()._allgather_base(pair, x)
    distributed.all_gather([torch.zeros(8), torch.zeros(8)], x)
    distributed.distributed_c10d._get_default_group()._reduce_scatter_base(x, pair)
    distributed.broadcast(half, 0)
    distributed.all_to_all_single(x, x.clone())
    distributed.all_to_all_single(x, x.clone(), [3, 5], [3, 5])
    distributed.all_reduce(torch.zeros(4, dtype=torch.int64))
    distributed.barrier()


def test_collectives_of_a_program_are_cases_with_their_sizes(pair, tmp_path):
    profiled(collectives, tmp_path)
    (folder,) = find_transfers(tmp_path)
    found = profiled_collectives(read_transfers(folder), Grid((2,)), "float32")
    sizes = {
        (one.collective.operation, one.collective.message_bytes, one.collective.dtype): one.count
        for one in found
        if one.collective is not None
    }
    assert sizes == {
        ("all_reduce", 32, "float32"): 1,
        ("all_gather", 32, "float32"): 2,
        ("reduce_scatter", 32, "float32"): 1,
        ("broadcast", 16, "bfloat16"): 1,
        ("all_to_all_single", 32, "float32"): 1,
        ("all_to_all", 32, "float32"): 1,
    }
    assert not any(one.is_derived or one.tier_assumed for one in found)
    left_out = {one.kernel_type: one.reason for one in found if one.collective is None}
    assert set(left_out) == {"hcom_allReduce_", "hcom_barrier_"} and "INT64" in str(left_out)


def test_messages_are_no_kernels_and_are_part_of_their_step(pair, tmp_path):
    calls = profiled(collectives, tmp_path)
    profile = read_profile([tmp_path])
    assert profile.report.communication_rows == 9
    assert not any("c10d" in one.kernel_type for one in profile.records)
    spent_us = sum(one.duration_ns for one in calls.launches if one.message) / 1000
    assert read_step_trace(tmp_path).communication_us == pytest.approx(spent_us, rel=1e-3)


def test_damaged_call_of_a_capture_is_refused(pair, tmp_path):
    profiled(lambda: distributed.all_reduce(torch.zeros(8)), tmp_path)
    (file,) = tmp_path.rglob("communication.json")
    whole = json.loads(file.read_text())
    (one,) = whole["step1"]["collective"].values()
    one[CALL]["count"] = "8"
    file.write_text(json.dumps(whole))
    with pytest.raises(BadInput):
        read_transfers(file.parent)


@pytest.mark.parametrize(
    ("messages", "operators", "exposed"),
    [
        ([(10, 20)], [], 10),
        ([(10, 20), (15, 30)], [(0, 12), (18, 19), (29, 50)], 16),
        ([(10, 20)], [(0, 100)], 0),
        ([(-10, 5), (95, 120)], [(2, 3)], 9),
        ([], [(2, 3)], 0),
    ],
)
def test_exposed_time_is_that_without_operators(messages, operators, exposed):
    assert exposed_ns(messages, operators, (0, 100)) == exposed


def event(name, start_ns):
    return SimpleNamespace(name=lambda: name, start_ns=lambda: start_ns, duration_ns=lambda: 5)


def test_messages_have_the_times_of_the_backend_if_it_recorded_all():
    events = [
        event("gloo:all_reduce", 30),
        event("gloo:all_reduce", 10),
        event("gloo:broadcast", 20),
        event("aten::add", 5),
    ]
    sent = ["hcom_allReduce_", "hcom_broadcast_", "hcom_broadcast_", "hcom_allReduce_"]
    assert profiled_spans(sent, events) == [(10, 15), None, None, (30, 35)]
