"""The rank that the others wait for, by the step of each rank of a gang."""

import pytest

from collector.comm.gang import RankPosition, blocking_ranks, stacks_kept
from collector.comm.rank_files import RankState
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

FRAME = '  File "/x/{}", line 7 in {}\n'
OF_RANK = FRAME.format("collector/comm/rank.py", "<module>")
OTHER_THREAD = "Thread 0x00007f01 (most recent call first):\n" + FRAME.format("t.py", "run") + "\n"
HEAD = "Current thread 0x00007f00 (most recent call first):\n"
WAITS = OTHER_THREAD + HEAD + FRAME.format("torch/distributed/c10d.py", "all_reduce") + OF_RANK
ON_DEVICE = HEAD + FRAME.format("torch_npu/npu/utils.py", "synchronize") + OF_RANK
EXCHANGES = HEAD + FRAME.format("collector/comm/measuring_rank.py", "_exchange") + OF_RANK
ALL_REDUCE, NAP = "/x/torch/distributed/c10d.py", "/x/sleep.py"
SLEEPS = HEAD + FRAME.format("sleep.py", "nap") + OF_RANK


def rank(number, steps, stack):
    return RankPosition(RankState(number, None, steps, f"step {steps}"), stack)


@pytest.mark.parametrize(
    ("stacks", "ranks", "data"),
    [
        ([(5, WAITS), (5, "")], "rank 1", ["step 5"]),
        ([(5, WAITS), (6, "")], "rank 1", ["step 6"]),  # after the others, since it waits
        ([(5, SLEEPS), (5, "")], "rank 1", ["step 5"]),
        ([(5, WAITS), (5, SLEEPS)], "rank 1", ["step 5", NAP]),
        ([(5, ON_DEVICE), (5, SLEEPS)], "rank 1", ["step 5", NAP]),
        ([(5, EXCHANGES), (5, SLEEPS)], "rank 1", ["step 5", NAP]),
        ([(5, WAITS), (4, SLEEPS), (5, SLEEPS)], "ranks 1, 2", ["rank 1", "step 4", NAP]),
        ([(5, WAITS), (4, WAITS)], "rank 1", ["step 4", ALL_REDUCE]),
        ([(5, WAITS), (5, ON_DEVICE)], "ranks 0, 1", ["rank 0", "step 5", ALL_REDUCE, "node"]),
        ([(5, WAITS)], "rank 0", ["step 5", ALL_REDUCE, "node"]),
        ([(5, SLEEPS), (5, SLEEPS)], "ranks 0, 1", ["rank 0", "step 5", NAP]),
    ],
)
def test_rank_that_blocks_the_others_is_named(stacks, ranks, data):
    found = [rank(at, *stack) for at, stack in enumerate(stacks)]
    line = blocking_ranks(found, range(len(found)))
    assert line.startswith(ranks + " ") and names(line, *data)
    assert ("/x/" in line) == (len(data) > 1)  # a silent rank has no stack
    assert ("node" in line) == ("node" in data)  # whose ranks are awaited if all of these wait


def test_rank_that_has_not_begun_is_named_before_ranks_that_wait_for_it():
    line = blocking_ranks([rank(4, 1, WAITS)], range(4, 7))
    assert line.startswith("ranks 5, 6 ") and "step" not in line


def test_innermost_frames_of_the_main_thread_are_reported():
    reported = rank(0, 1, WAITS).where()
    assert reported.startswith('File "/x/torch/distributed/c10d.py", line 7 in all_reduce | ')


def test_stored_part_of_a_stack_is_bounded(tmp_path):
    (tmp_path / "rank-3.stacks").write_text("x" * 100_000)
    ((name, kept),) = stacks_kept(tmp_path)
    assert (name, len(kept)) == ("rank-3.stacks", 16 << 10)
