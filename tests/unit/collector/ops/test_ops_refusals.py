"""Which cases need no device to be answered, and which mistakes are left to the session."""

import pytest

from collector.distribute_call import DISTRIBUTE_KERNELS, DistributeCall
from collector.errors import CaseRejected
from collector.measurement import Outcome
from collector.ops import registry
from collector.ops.refusals import (
    NO_INPUTS,
    NO_OPERATOR,
    NO_SUCH_WORLD,
    Refusal,
    refusal,
)
from collector.ops.spec import Constraint, OpSpec
from tests.unit.collector.measuring.pretending import ADD, find, record

pytestmark = pytest.mark.fast


def test_what_cannot_be_launched_is_refused_with_its_reason():
    unknown, unheard, flat = record("N/A", "MemSet"), record("3,3", "Unheard"), record("3")
    assert refusal(unknown.case, find, "cpu") == Refusal(
        Outcome.UNSUPPORTED, NO_INPUTS, "its inputs are unknown (N/A in the source)"
    )
    assert refusal(unheard.case, find, "cpu") == Refusal(
        Outcome.UNSUPPORTED, NO_OPERATOR, "no operator is declared for Unheard"
    )
    rejected = refusal(flat.case, find, "cpu")
    assert rejected is not None
    assert (rejected.outcome, rejected.why) == (Outcome.REJECTED, "two dims are wanted")
    assert rejected.reason.startswith("two dims are wanted")
    assert refusal(record("3,3").case, find, "cpu") is None


@pytest.mark.parametrize(
    "mistake",
    [
        lambda case: case.inputs[9],
        lambda case: case.inputs[0].shapes,
        lambda case: int("x"),
        lambda case: 1 // 0,
        lambda case: len(7),
    ],
)
def test_a_mistake_in_a_declaration_is_left_to_the_session(mistake):
    constraints = (Constraint("something is wanted", mistake),)
    wrong = OpSpec(
        "Add", "torch.add", ("x",), lambda *_: None, lambda _: 0, constraints=constraints
    )
    assert refusal(record("2,2").case, lambda kernel_type: wrong, "cpu") is None


def test_a_rejection_names_the_rule_and_the_case():
    with pytest.raises(CaseRejected, match="two dims are wanted: Add 3 FLOAT"):
        ADD.check(record("3").case, "cpu")


@pytest.mark.parametrize("kernel", DISTRIBUTE_KERNELS)
@pytest.mark.parametrize(
    ("ranks", "said"), [(1, "1 rank: "), (2, ""), (512, ""), (1024, "1024 ranks: ")]
)
def test_experts_are_exchanged_on_npus_among_as_many_ranks_as_cann_takes(kernel, ranks, said):
    case = DistributeCall(kernel, 8, 64, 2048, 4, ep_size=ranks, capacity=8).case
    no = refusal(case, registry.find, "npu")
    if not said:
        assert no is None
        return
    assert no is not None and (no.outcome, no.why) == (Outcome.REJECTED, NO_SUCH_WORLD)
    assert no.reason.startswith(f"{said}CANN wants 2 to 768, 16 or more for full mesh on A2;")
    assert refusal(case, registry.find, "cuda") is None  # the reference has no such bound
