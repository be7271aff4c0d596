"""Collectives through the stock ProcessGroupHCCL, on a runtime whose ranks wait for each other and
move nothing."""

import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collector.codec.errors import HostFault
from collector.comm import gang
from collector.comm.bench_plan import BenchPlan, Mode, collectives_of
from collector.comm.gang import GangFailed, GangWork, Rendezvous, free_port, run_gang
from collector.comm.rank_files import have_met, rank_states, read_rank_results
from collector.comm.timing import collective_timing
from collector.engine.calls import parse_call, read_calls
from collector.ranks.collective import OPERATIONS
from collector.ranks.topology import Grid
from tests.npu.fakecann.build import FakeCann, environment
from tests.npu.fakecann.faults import Fault, for_ranks
from tests.npu.fakecann.truth import truth_us
from tests.unit.collector.comm.test_comm_gang import wait_for_their_end
from tests.unit.collector.naming import names, naming

pytestmark = [pytest.mark.npu, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 10.0
HOST = "127.0.0.1"
FIRST_MESSAGE = "HCCL HcclAllReduce(f32[256]:ND, 0, ranks=2)"
RANKS, CALLS = 2, 8  # one that is checked, two pilots, and the fewest that are timed


OTHERS = [f"to={other}, from={other}, ranks=2" for other in (0, 1)]
# How often two ranks make each call of HCCL for one case of an operation.
CALLS_OF = {
    "all_reduce": {"HCCL HcclAllReduce(bf16[512]:ND, 0, ranks=2)": RANKS * CALLS},
    "all_gather": {"HCCL HcclAllGather(bf16[512]:ND, ranks=2)": RANKS * CALLS},
    "reduce_scatter": {"HCCL HcclReduceScatter(bf16[512]:ND, 0, ranks=2)": RANKS * CALLS},
    "all_to_all": {"HCCL HcclAlltoAllV({bf16[256]:ND, bf16[256]:ND}, ranks=2)": RANKS * CALLS},
    # the elements that go to each rank
    "all_to_all_single": {"HCCL HcclAlltoAll(bf16[256]:ND, ranks=2)": RANKS * CALLS},
    "broadcast": {"HCCL HcclBroadcast(bf16[512]:ND, 0, ranks=2)": RANKS * CALLS},
    "send_recv": {
        f"HCCL HcclBatchSendRecv({{bf16[512]:ND, bf16[512]:ND}}, {other})": CALLS
        for other in OTHERS
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "operations"),
    # Kernels are timed in windows of the stock profiler, each of which costs a second and more.
    [("event", OPERATIONS), ("kernel", ("all_reduce", "send_recv"))],
    ids=["event", "kernel"],
)
def test_every_operation_makes_its_hccl_call_and_a_missing_result_is_not_a_row(
    fake: FakeCann, tmp_path: Path, mode: str, operations: tuple[str, ...]
):
    log = tmp_path / "log"
    words = "comm --do-run --backend npu --num-devices 2 --bytes-grid 1024 --rounds 1 --budget-s 0"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "jobs.cli", *words.split()),
            *("--bench-mode", mode, "--output-dir", str(tmp_path / "out")),
            *("--ops", *operations),
        ],
        cwd=ROOT,
        env=environment(fake, log=log, devices=RANKS),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    (wrong,) = (line for line in done.stdout.splitlines() if names(line, "rank 0, 1"))
    assert names(wrong, *operations, 1024, "bfloat16", "2 ranks")
    assert not (tmp_path / "out").exists()
    calls = Counter(call.text for call in read_calls(log) if call.kind == "HCCL")
    expected = Counter({FIRST_MESSAGE: RANKS})
    for operation in operations:
        expected.update(CALLS_OF[operation])
    assert calls == expected


def test_window_of_the_stock_profiler_has_the_start_of_each_kernel(fake: FakeCann):
    before_ns = time.time_ns()
    done = subprocess.run(
        [sys.executable, "-m", "tests.npu.kernel_window"],
        cwd=ROOT,
        env=environment(fake),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    spans = [(int(start), int(took)) for start, took in lines]
    assert len(spans) == 3
    text = "ACLNN aclnnAdd(f32[4,8]:ND, f32[4,8]:ND, i64=1, f32[4,8]:ND)"
    assert {took for _, took in spans} == {round(truth_us(parse_call(text), "Add") * 1000)}
    assert before_ns < spans[0][0] < spans[1][0] < spans[2][0]


def bench(folder: Path, fake: FakeCann, environment_: dict[str, str]) -> BenchPlan:
    """Run a small bench of two ranks."""
    cases, _ = collectives_of(["all_reduce"], [1024], "bfloat16", [2], [], grid=Grid((2,)), world=2)
    plan = BenchPlan("npu", Grid((2,)), 2, Mode.EVENT, 1, 0.0, (9, 9), tuple(cases))
    reported = {**environment(fake, devices=RANKS), **environment_}
    folder.mkdir()
    run_gang(GangWork(plan, patience_s=PATIENCE_S, environment=reported), Rendezvous(RANKS), folder)
    return plan


def failure(folder: Path, fake: FakeCann, environment_: dict[str, str]) -> str:
    """Return why it failed; none of its ranks is left."""
    with pytest.raises(GangFailed) as error:
        bench(folder, fake, environment_)
    wait_for_their_end(folder)
    return str(error.value)


def with_python(folder: Path, fake: FakeCann, text: str) -> dict[str, str]:
    """Return the environment with a module that every rank runs when it starts."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{environment(fake)['PYTHONPATH']}"}


@pytest.mark.slow
def test_failing_first_message_blames_no_case(fake: FakeCann, tmp_path: Path):
    hangs = for_ranks(tmp_path / "faults", Fault("hang", call="HcclAllReduce(", nth=1, device=1))
    reason = failure(tmp_path / "bench", fake, hangs)
    assert names(reason, "first message", "hccl") and "all_reduce" not in reason
    assert not have_met(tmp_path / "bench")


@pytest.mark.slow
def test_rank_that_dies_in_a_collective_is_named_with_its_case(fake: FakeCann, tmp_path: Path):
    dies = for_ranks(
        tmp_path / "faults", Fault("crash", call="HcclAllReduce(bf16", nth=3, device=1)
    )
    reason = failure(tmp_path / "bench", fake, dies)
    assert names(reason, "rank 1", "SIGSEGV", "all_reduce", 1024)
    assert have_met(tmp_path / "bench")


NEVER_CALLS = """
import os
if os.environ.get("RANK") == "1":
    from collector.comm.measuring_rank import Buffers
    def never():
        import time; time.sleep(3600)
    Buffers._call = lambda self: never
"""


@pytest.mark.slow
def test_rank_that_never_calls_is_distinguished_from_a_waiting_one(fake: FakeCann, tmp_path: Path):
    reason = failure(tmp_path / "bench", fake, with_python(tmp_path / "site", fake, NEVER_CALLS))
    assert names(reason, "rank 1", "all_reduce", 1024, "in never")


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


@pytest.mark.slow
def test_late_rank_increases_the_skew_and_not_the_duration(fake: FakeCann, tmp_path: Path):
    folder = tmp_path / "bench"
    bench(folder, fake, with_python(tmp_path / "site", fake, COMES_LATE))
    (seen,) = read_rank_results(folder)
    timing = collective_timing(seen.ranks)
    assert seen.wrong == (0, 1)  # nothing moves here
    assert timing.skew_us > 45_000 and timing.rank_max_us > 40_000  # of rank 0, which waited
    assert timing.duration_us < 25_000


@pytest.mark.slow
def test_nodes_with_different_tls_switches_are_named(fake: FakeCann, tmp_path: Path, monkeypatch):
    states = ["off", "on"]
    monkeypatch.setattr(gang, "tls_switches", lambda count: states.pop())
    cases, _ = collectives_of(["all_reduce"], [1024], "bfloat16", [2], [], grid=Grid((2,)), world=2)
    plan = BenchPlan("npu", Grid((2,)), 2, Mode.EVENT, 1, 0.0, (9, 9), tuple(cases))
    port = free_port()

    def reason(node: int) -> str:
        folder = tmp_path / str(node)
        folder.mkdir()
        env = environment(fake) | {"NODE_NAME": f"node-{node}"}
        with pytest.raises(GangFailed) as error:
            run_gang(GangWork(plan, environment=env), Rendezvous(1, 2, node, HOST, port), folder)
        assert not have_met(folder)
        return str(error.value)

    with ThreadPoolExecutor() as nodes:
        reasons = list(nodes.map(reason, (0, 1)))
    for node, words in enumerate(reasons):
        assert names(words, f"rank {node}", "node-0", "node-1", "hccn_tool") and "TLS" in words
        assert "Traceback" not in words and "raise" not in words


def test_ranks_are_not_started_on_an_unhealthy_npu(fake: FakeCann, tmp_path: Path, monkeypatch):
    for name, value in environment(fake, devices=RANKS).items():
        if name in ("PATH", "FAKE_NPU_COUNT"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAKE_NPU_ALARM", "1")
    with pytest.raises(HostFault, match=naming("NPU 1", "Alarm")):
        bench(tmp_path / "bench", fake, {})
    assert not rank_states(tmp_path / "bench")
