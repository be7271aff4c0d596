"""Collectives through the stock ProcessGroupHCCL, on a runtime that moves nothing."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from collector.collective import OPERATIONS
from tests.npu.fakecann.build import FakeCann, environment
from tests.npu.fakecann.calls import parse_call, read_calls
from tests.npu.fakecann.truth import truth_us

pytestmark = [pytest.mark.npu, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
RANKS, CALLS = 2, 8  # one that is looked at, two pilots, and the fewest that are timed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["event", "kernel"])  # the latter in windows of the stock profiler
def test_every_operation_becomes_hccls_own_call_and_a_result_that_never_came_is_no_row(
    fake: FakeCann, tmp_path: Path, mode: str
):
    log = tmp_path / "log"
    words = "comm --do-run --backend npu --num-devices 2 --bytes-grid 1024 --rounds 1 --budget-s 0"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "jobs.cli", *words.split()),
            *("--bench-mode", mode, "--output-dir", str(tmp_path / "out")),
        ],
        cwd=ROOT,
        env=environment(fake, log=log, devices=RANKS),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    every = f"{', '.join(OPERATIONS)} of 1024 bytes of bfloat16 over 2 ranks of tier 2 (7 cases)"
    assert f"wrong: {every}: the result of rank 0, 1 is wrong" in done.stdout
    assert not (tmp_path / "out").exists()
    calls = Counter(call.text for call in read_calls(log) if call.kind == "HCCL")
    assert calls == dict.fromkeys(
        (
            "HCCL HcclAllReduce(bf16[512]:ND, 0)",
            "HCCL HcclAllGather(bf16[512]:ND)",  # of a rank's input
            "HCCL HcclReduceScatter(bf16[512]:ND, 0)",  # of a rank's share
            "HCCL HcclAlltoAll(bf16[256]:ND)",  # to each rank
            "HCCL HcclAlltoAllV({bf16[204]:ND, bf16[308]:ND})",
            "HCCL HcclBroadcast(bf16[512]:ND, 0)",
        ),
        RANKS * CALLS,
    )


WINDOW = """
import torch
from collector.comm.rank_device import open_rank_device
device = open_rank_device("npu", 0)
x = torch.ones(4, 8, device=device.name)
spans = device.kernels("Add", lambda: [(x + x).neg() for _ in range(3)])
print(*(f"{span.start_ns} {span.duration_ns}" for span in spans), sep="\\n")
"""


def test_a_window_of_the_stock_profiler_tells_when_each_kernel_of_a_type_ran(fake: FakeCann):
    before_ns = time.time_ns()
    done = subprocess.run(
        [sys.executable, "-c", WINDOW],
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
