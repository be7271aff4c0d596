"""Which cases need no device to be answered, and which mistakes are left to the session."""

import pytest

from collector.errors import CaseRejected
from collector.measurement import Outcome
from collector.measuring.answers import Unmeasured
from collector.measuring.refusals import find_refusals, refusal
from collector.ops.spec import Constraint, OpSpec
from collector.shard import ShardCase
from tests.unit.collector.measuring.pretending import ADD, cases, find, record

pytestmark = pytest.mark.fast


def test_what_cannot_be_launched_is_refused_with_its_reason():
    odd = [record("N/A", "MemSet"), record("3,3", "Unheard"), record("3")]
    unknown, unheard, flat = odd
    found = find_refusals([*cases(2), *(ShardCase(one, 0.0) for one in odd)], find, "cpu")
    assert found[:2] == [
        Unmeasured(unknown, Outcome.UNSUPPORTED, "its inputs are unknown (N/A in the source)"),
        Unmeasured(unheard, Outcome.UNSUPPORTED, "no operator is declared for Unheard"),
    ]
    assert [(v.record, v.outcome) for v in found[2:]] == [(flat, Outcome.REJECTED)]


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
