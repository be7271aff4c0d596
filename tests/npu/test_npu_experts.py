"""A mixture of experts over ranks, by the stock torch_npu on a runtime that moves nothing."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.distribute_call import (
    COMBINE,
    DISPATCH,
    EXPAND_SCALES,
    MASK,
    TP_COUNTS,
    WEIGHTS,
    DistributeCall,
)
from tests.npu.fakecann.build import FakeCann, environment
from tests.npu.fakecann.calls import read_calls

pytestmark = [pytest.mark.npu, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
RANKS, TIMED = 2, 8  # calls of a rank: one that is looked at, two pilots, and the fewest
SENT = DistributeCall(DISPATCH, 6, 32, 4, 2, RANKS, 6)
WITH_ALL = DistributeCall(
    DISPATCH, 6, 32, 4, 2, RANKS, 8, is_int8=True, optional=(WEIGHTS, MASK, TP_COUNTS)
)
BACK = DistributeCall(COMBINE, 6, 32, 4, 2, RANKS, 6, optional=(EXPAND_SCALES, MASK, TP_COUNTS))
BENCH = """
import sys
from pathlib import Path
from collector.comm.gang import Rendezvous
from collector.comm.moe.benching import bench, found_in
from collector.comm.moe.moe_plan import MoePlan
plan, folder = MoePlan.from_json(sys.argv[1]), Path(sys.argv[2])
bench(plan, Rendezvous(plan.world), folder)
for _, reason in found_in(folder, plan).failed:
    print(reason)
"""
ROOM, MORE_ROOM = "bf16[24,32]:ND, f32[24]:ND, i32[3072]:ND", "i8[32,32]:ND, f32[32]:ND"


def test_every_rank_calls_the_kernels_with_its_place_and_the_room_of_all(
    fake: FakeCann, tmp_path: Path
):
    log = tmp_path / "log"
    plan = MoePlan("npu", RANKS, 1, 0.0, tuple(MoeCase(call, 7) for call in (SENT, WITH_ALL, BACK)))
    done = subprocess.run(
        [sys.executable, "-c", BENCH, plan.to_json(), str(tmp_path)],
        cwd=ROOT,
        env=environment(fake, log=log, devices=RANKS),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the result of rank 0, 1 is wrong"] * 3
    calls = Counter(call.text for call in read_calls(log) if "aclnnMoeDistribute" in call.text)
    before = '"fake_hccl", 2, {rank}, 4'
    wanted = {}
    for rank in range(RANKS):
        place = before.format(rank=rank)
        alone, tp = f'{place}, "", 0, 0, 0, 1, 0', f'{place}, "fake_hccl", 1, 0, 0, 1, 0'
        rest = "i64[2]:ND, i32[4]:ND"
        sent, back = "ACLNN aclnnMoeDistributeDispatchV4", "ACLNN aclnnMoeDistributeCombineV4"
        ids, weights = "i32[6,2]:ND", "f32[6,2]:ND"
        # without weights, scales or mask; room for 6 tokens of each rank is 0 of the caller
        wanted[
            f'{sent}(bf16[6,32]:ND, {ids}, 0, 0, 0, 0, 0, {alone}, 0, 12, 1, "", 0, 0, 0, '
            f"{ROOM}, {rest}, i32[0]:ND, f32[24]:ND)"
        ] = TIMED
        # quantised by rows, 16 tokens of both
        wanted[
            f'{sent}(bf16[6,32]:ND, {ids}, 0, bool[6]:ND, {weights}, 0, 0, {tp}, 2, 16, 1, "", '
            f"0, 0, 0, {MORE_ROOM}, i32[4096]:ND, {rest}, i32[1]:ND, f32[32]:ND)"
        ] = TIMED
        # what a combine sends back has been dispatched once
        wanted[
            f'{sent}(bf16[6,32]:ND, {ids}, 0, bool[6]:ND, 0, 0, 0, {tp}, 0, 12, 1, "", 0, 0, 0, '
            f"{ROOM}, {rest}, i32[1]:ND, f32[24]:ND)"
        ] = 1
        wanted[
            f"{back}(bf16[24,32]:ND, {ids}, i32[3072]:ND, i32[4]:ND, {weights}, i32[1]:ND, "
            f'bool[6]:ND, 0, 0, 0, f32[24]:ND, 0, 0, 0, 0, 0, 0, 0, {tp}, 12, 0, 0, 0, "", '
            "0, 0, 0, bf16[6,32]:ND)"
        ] = TIMED
    assert calls == wanted
