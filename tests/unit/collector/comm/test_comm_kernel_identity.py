"""The evidence of a rank's records for the requested case, and of all ranks together."""

import pytest

from collector.comm.kernels import (
    OTHER_TENSORS,
    Span,
    proof_of_calls,
    proof_of_ranks,
    weakest_proof,
)
from collector.model.measurement import Proof
from collector.ranks.distribution import DISPATCH, DistributeCall
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

CALL = DistributeCall(DISPATCH, 6, 32, 4, 2, 2, 6)
CELLS = CALL.cells


def reported(*rows, calls=2):
    spans = [Span(at, 1, tuple(row.items())) for at, row in enumerate(rows)]
    return proof_of_calls(spans, calls, CALL.case)


def test_rows_of_the_case_prove_its_kernel():
    assert reported(CELLS, CELLS) is Proof.PROVED


def test_rows_without_tensors_and_several_rows_per_call_prove_nothing():
    assert reported(CELLS, {}) is Proof.UNVERIFIED
    assert reported(*[CELLS] * 4) is Proof.UNVERIFIED


def test_different_tensors_are_reported_with_their_slot():
    other = CELLS | {"Input Shapes": CELLS["Input Shapes"].replace("6,32", "8,32", 1)}
    found = reported(CELLS, other)
    assert found.startswith(f"{OTHER_TENSORS}: ")
    assert names(found, "input 1", "8,32 DT_BF16 ND", "6,32 DT_BF16 ND")


def test_proof_of_a_gang_is_the_weakest_of_its_ranks():
    of_ranks = {0: "proved", 1: f"{OTHER_TENSORS}: input 1: 8", 2: "unverified"}
    found = proof_of_ranks(of_ranks)
    assert found.startswith(OTHER_TENSORS) and names(found, "rank 1", "input 1: 8")
    assert proof_of_ranks({0: "proved", 1: "unverified"}) is Proof.UNVERIFIED
    assert proof_of_ranks({0: "proved", 1: "proved"}) is Proof.PROVED
    assert weakest_proof([]) is weakest_proof(["proved", ""]) is Proof.NONE
