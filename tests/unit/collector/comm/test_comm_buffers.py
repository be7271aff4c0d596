"""A result that did not come is seen."""

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
def test_what_was_never_sent_is_not_right(operation, dtype):
    wrong = [not buffers(operation, dtype, at).is_right() for at in range(SIZE)]
    root_has_it = operation == "broadcast"
    assert wrong == [not root_has_it, True, True, True]


def test_one_wrong_part_is_seen():
    made = [buffers("all_gather", "float32", at) for at in range(SIZE)]
    whole = torch.cat([one._sent for one in made])
    made[0]._got.copy_(whole)
    assert made[0].is_right()
    made[0]._got.copy_(torch.cat([made[1]._sent, made[0]._sent, *(m._sent for m in made[2:])]))
    assert not made[0].is_right()


def test_a_sum_that_lacks_a_rank_is_seen():
    made = [buffers("all_reduce", "bfloat16", at) for at in range(SIZE)]
    total = sum(one._sent.clone() for one in made)
    lacking = total - made[2]._sent
    made[0]._sent.copy_(total)
    assert made[0].is_right()
    made[0]._sent.copy_(lacking)
    assert not made[0].is_right()


@pytest.mark.parametrize("size", [2, 120 * 2, 121 * 2, 4096])
def test_what_is_sent_is_what_is_expected_of_every_place(size):
    for at in range(SIZE):
        made = Buffers(
            Collective("broadcast", size, "bfloat16", SIZE, 1),
            Member(tuple(range(SIZE)), at, None),
            "cpu",
        )
        places = torch.arange(size // 2)
        assert torch.equal(made._sent, _value(places, torch.tensor(at)).to(torch.bfloat16))
        assert made._sent.is_contiguous()
