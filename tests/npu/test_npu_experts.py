"""A mixture of experts over ranks, by the stock torch_npu on a runtime that moves nothing."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from collector.comm.bench_plan import Mode
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.rank_files import CaseSeen, read_rank_results
from collector.engine.calls import read_calls
from collector.ranks.distribution import (
    COMBINE,
    DISPATCH,
    EXPAND_SCALES,
    MASK,
    TP_COUNTS,
    WEIGHTS,
    DistributeCall,
)
from tests.npu.fakecann.build import FakeCann, environment
from tests.npu.fakecann.faults import Fault, write_faults
from tests.unit.collector.naming import names

pytestmark = [pytest.mark.npu, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
RANKS, TIMED = 2, 5
PAIRS = 2 + TIMED  # of a dispatch and a combine: two pilots, and the fewest that are timed
SENT = DistributeCall(DISPATCH, 6, 32, 4, 2, RANKS, 6)
WITH_ALL = DistributeCall(
    DISPATCH, 6, 32, 4, 2, RANKS, 8, is_int8=True, optional=(WEIGHTS, MASK, TP_COUNTS)
)
BACK = DistributeCall(COMBINE, 6, 32, 4, 2, RANKS, 6, optional=(EXPAND_SCALES, MASK, TP_COUNTS))
CALLS = (SENT, WITH_ALL, BACK)
FEWER, FEWER_X = DistributeCall(DISPATCH, 5, 32, 4, 2, RANKS, 6), "bf16[5,32]:ND"
SENDS, BRINGS = "ACLNN aclnnMoeDistributeDispatchV4", "ACLNN aclnnMoeDistributeCombineV4"
IDS, WEIGHED, COUNTS = "i32[6,2]:ND", "f32[6,2]:ND", "i64[2]:ND, i32[4]:ND"


def received(rows: str, info: str, room: int, tp: int) -> str:
    """Return the outputs of a dispatch with a given capacity of rows."""
    per_row = f"f32[{room}]:ND"
    return f"{rows}, {per_row}, {info}, {COUNTS}, i32[{tp}]:ND, {per_row}"


def calls_of(rank: int) -> Counter[str]:
    """Return the calls of a rank: dispatches and combines alternate."""
    plain = f'"fake_hccl", {RANKS}, {rank}, 4, "", 0, 0, 0, 1, 0'
    tp = f'"fake_hccl", {RANKS}, {rank}, 4, "fake_hccl", 1, 0, 0, 1, 0'
    end, x, mask, none = '"", 0, 0, 0', "bf16[6,32]:ND", "bool[6]:ND", ", 0" * 7
    rows, more = ("bf16[24,32]:ND", "i32[3072]:ND"), ("bf16[32,32]:ND", "i32[4096]:ND")

    def sent(optional: str, place: str, how: str, got: str) -> str:
        return f"{SENDS}({x}, {IDS}, 0, {optional}, 0, 0, {place}, {how}, 1, {end}, {got})"

    def back(given: tuple[str, str], optional: str, place: str, most: int) -> str:
        given_back = f"{given[0]}, {IDS}, {given[1]}, i32[4]:ND, {WEIGHED}, {optional}{none}"
        return f"{BRINGS}({given_back}, {place}, {most}, 0, 0, 0, {end}, {x})"

    with_tp = f"i32[1]:ND, {mask}, 0, 0, 0"
    return Counter(
        {
            # capacity for 6 tokens of each rank: 12 in all; the first has no combine before it
            sent("0, 0", plain, "0, 12", received(*rows, 24, 0)): 2 + PAIRS,
            back(rows, "0, 0, 0, 0, 0, 0", plain, 12): 1 + PAIRS,
            # quantised by rows, with weights; capacity 8
            sent(f"{mask}, {WEIGHED}", tp, "2, 16", received("i8[32,32]:ND", more[1], 32, 1)): 1
            + PAIRS,
            sent(f"{mask}, 0", tp, "0, 16", received(*more, 32, 1)): 1,
            back(more, f"{with_tp}, 0", tp, 16): 1 + PAIRS,
            # a combine that is timed, with what a dispatch returned for each row
            sent(f"{mask}, 0", tp, "0, 12", received(*rows, 24, 1)): 1 + PAIRS,
            back(rows, f"{with_tp}, f32[24]:ND", tp, 12): 1 + PAIRS,
        }
    )


@dataclass(frozen=True)
class Benched:
    """The output, calls and results of two ranks."""

    message: list[str]
    calls: Counter[str]
    seen: list[CaseSeen]


@pytest.fixture(scope="module")
def benched(fake: FakeCann, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mode], Benched]:
    """Run the bench of a mode. With kernel timing it has one case more, whose kernel gets other
    tensors."""

    @cache
    def benched_by(mode: Mode) -> Benched:
        folder = tmp_path_factory.mktemp(mode)
        other = Fault("between", call=f"{SENDS}({FEWER_X}", to="casts")
        faults = write_faults(folder / "faults.json", other)
        calls = (*CALLS, FEWER) if mode is Mode.KERNEL else CALLS
        plan = MoePlan("npu", RANKS, 1, 0.0, tuple(MoeCase(call, 7) for call in calls), mode=mode)
        log = folder / "log"
        done = subprocess.run(
            [sys.executable, "-m", "tests.npu.expert_bench", plan.to_json(), str(folder)],
            cwd=ROOT,
            env=environment(fake, log=log, devices=RANKS, faults=faults),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        own = (call.text for call in read_calls(log) if "aclnnMoeDistribute" in call.text)
        # torch_npu warns on stdout of the folder of CANN, before or after the messages
        message = [line for line in done.stdout.splitlines() if not line.startswith("Warning: ")]
        return Benched(message, Counter(own), read_rank_results(folder))

    return benched_by


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.EVENT, Mode.KERNEL])
def test_every_rank_calls_the_kernels_with_its_number_and_times_one_of_them(
    benched: Callable[[Mode], Benched], mode: Mode
):
    found = benched(mode)
    assert len(found.message) >= len(CALLS)
    assert all(names(reason, "rank 0, 1") for reason in found.message[: len(CALLS)])
    calls = Counter({call: n for call, n in found.calls.items() if FEWER_X not in call})
    assert calls == calls_of(0) + calls_of(1)
    seen = found.seen[: len(CALLS)]
    assert len(seen) == len(CALLS)
    for ranks in (one.ranks for one in seen):
        assert [len(rank.durations_us) for rank in ranks] == [TIMED] * RANKS
        assert min(min(rank.durations_us) for rank in ranks) > 0
        assert all(list(rank.starts_us) == sorted(rank.starts_us) for rank in ranks)
    expected = {Mode.KERNEL: "proved", Mode.EVENT: "unverified"}[mode]  # events have no tensors
    assert [one.identity for one in seen] == [expected] * len(CALLS)
    if mode is Mode.KERNEL:  # the runtime takes as long for the same tensors, and runs nothing else
        assert all(len(set(rank.durations_us)) == 1 for one in seen for rank in one.ranks)


@pytest.mark.slow
def test_kernel_with_other_tensors_gives_no_duration_of_the_case(
    benched: Callable[[Mode], Benched],
):
    (seen,) = benched(Mode.KERNEL).seen[len(CALLS) :]
    assert (seen.ranks, seen.identity) == ((), "")
    assert names(seen.left_out, "rank 0", "input 1", "5,32", "FLOAT", "ND")
