"""What a rank's records say of the case that was asked for, and what the ranks say together."""

import pytest

from collector.comm.kernel_identity import least, told_by, told_by_all
from collector.comm.kernels import Span
from collector.distribute_call import DISPATCH, DistributeCall
from collector.measurement import Proof

pytestmark = pytest.mark.fast

CALL = DistributeCall(DISPATCH, 6, 32, 4, 2, 2, 6)
CELLS = CALL.cells


def told(*rows, calls=2):
    spans = [Span(at, 1, tuple(row.items())) for at, row in enumerate(rows)]
    return told_by(spans, calls, CALL.case)


def test_rows_of_the_case_prove_it():
    assert told(CELLS, CELLS) is Proof.PROVED


def test_rows_without_tensors_and_several_a_call_prove_nothing():
    assert told(CELLS, {}) is Proof.UNVERIFIED
    assert told(*[CELLS] * 4) is Proof.UNVERIFIED


def test_other_tensors_are_told_with_their_slot():
    other = CELLS | {"Input Shapes": CELLS["Input Shapes"].replace("6,32", "8,32", 1)}
    assert told(CELLS, other).startswith("other tensors came: input 1: 8,32 DT_BF16 ND came, 6,32")


def test_one_rank_s_difference_is_all_ranks_and_the_least_proof_counts():
    said = {0: "proved", 1: "other tensors came: input 1: 8 came", 2: "unverified"}
    assert told_by_all(said) == "other tensors came in rank 1: input 1: 8 came"
    assert told_by_all({0: "proved", 1: "unverified"}) is Proof.UNVERIFIED
    assert told_by_all({0: "proved", 1: "proved"}) is Proof.PROVED
    assert least([]) is least(["proved", ""]) is Proof.NONE
