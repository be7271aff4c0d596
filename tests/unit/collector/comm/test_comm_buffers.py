"""A missing or wrong result is detected."""

from itertools import product

import pytest
import torch

from collector.comm.measuring_rank import Buffers, Member, _value
from collector.ranks.collective import OPERATIONS, Collective

SIZE = 4


def buffers(operation, dtype, at):
    case = Collective(operation, 4096, dtype, SIZE, 1)
    made = Buffers(case, Member(tuple(range(SIZE)), at, None), "cpu")
    received = made._got
    if received.data_ptr() != made._sent.data_ptr():
        received.zero_()
    return made


@pytest.mark.parametrize(
    ("operation", "dtype"), [*product(OPERATIONS, ("bfloat16", "float16", "float32", "int8"))]
)
def test_buffers_are_not_right_before_the_operation(operation, dtype):
    wrong = [not buffers(operation, dtype, at).is_right() for at in range(SIZE)]
    root_has_it = operation == "broadcast"
    assert wrong == [not root_has_it, True, True, True]


def test_wrong_part_of_a_result_is_detected():
    made = [buffers("all_gather", "float32", at) for at in range(SIZE)]
    whole = torch.cat([one._sent for one in made])
    made[0]._got.copy_(whole)
    assert made[0].is_right()
    made[0]._got.copy_(torch.cat([made[1]._sent, made[0]._sent, *(m._sent for m in made[2:])]))
    assert not made[0].is_right()


def test_sum_without_one_rank_is_detected():
    made = [buffers("all_reduce", "bfloat16", at) for at in range(SIZE)]
    total = sum(one._sent.clone() for one in made)
    lacking = total - made[2]._sent
    made[0]._sent.copy_(total)
    assert made[0].is_right()
    made[0]._sent.copy_(lacking)
    assert not made[0].is_right()


@pytest.mark.parametrize("size", [2, 120 * 2, 121 * 2, 4096])
def test_sent_values_equal_the_expected_values_at_every_position(size):
    for at in range(SIZE):
        made = Buffers(
            Collective("broadcast", size, "bfloat16", SIZE, 1),
            Member(tuple(range(SIZE)), at, None),
            "cpu",
        )
        places = torch.arange(size // 2)
        assert torch.equal(made._sent, _value(places, torch.tensor(at)).to(torch.bfloat16))
        assert made._sent.is_contiguous()
