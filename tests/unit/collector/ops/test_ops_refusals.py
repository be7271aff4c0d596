"""Cases that need no device for their outcome, and errors that are left to the session."""

import pytest

from collector.codec.errors import CaseRejected
from collector.model.measurement import Outcome
from collector.ops import registry
from collector.ops.refusals import (
    NO_INPUTS,
    NO_OPERATOR,
    NO_SUCH_WORLD,
    refusal,
    refusal_of_device,
)
from collector.ops.spec import Constraint, OpSpec
from collector.ranks.distribution import DISTRIBUTE_KERNELS, DistributeCall
from tests.fixtures.op_rows import rows_alone
from tests.unit.collector.measuring.pretending import ADD, NEEDS_TWO_DIMS, find_operator, record

pytestmark = pytest.mark.fast


def test_case_that_cannot_be_launched_is_refused_with_a_reason():
    unknown, unheard, flat = record("N/A", "Unknown"), record("3,3", "Unheard"), record("3")
    no_inputs, no_operator = (refusal(one.case, find_operator, "cpu") for one in (unknown, unheard))
    assert (no_inputs.outcome, no_inputs.why) == (Outcome.UNSUPPORTED, NO_INPUTS)
    assert "N/A" in no_inputs.reason
    assert (no_operator.outcome, no_operator.why) == (Outcome.UNSUPPORTED, NO_OPERATOR)
    assert "Unheard" in no_operator.reason
    rejected = refusal(flat.case, find_operator, "cpu")
    assert (rejected.outcome, rejected.why) == (Outcome.REJECTED, NEEDS_TWO_DIMS.text)
    assert NEEDS_TWO_DIMS.text in rejected.reason and flat.case.describe() in rejected.reason
    assert refusal(record("3,3").case, find_operator, "cpu") is None


def test_kernels_without_recorded_inputs_keep_their_own_reason():
    no = refusal(record("N/A", "MemSet").case, registry.find_operator, "npu")
    assert "another kernel" in no.why


def test_kernels_that_no_call_launches_are_refused_with_their_own_reason():
    for kernel, word in {
        "Bincount": "host",
        "ResizeBilinearV2": "UpsampleBilinear2d",
        "LpNormUpdateV2": "LpNormReduceV2",
        "StridedSliceD": "graph",
        "Conv2DBackpropFilterD": "graph",
        "MatmulReduceScatter": "ranks",
        "DynamicMxQuantWithDualAxis": "950",
        "KvCompressEpilog": "950",
        "SparseFlashMlaMetadata": "plan",
        "_kv8_swa_rows_kernel": "no release",
        "DispatchGmmCombineDecode": "ranks",
    }.items():
        no = refusal(record("3,3", kernel).case, registry.find_operator, "npu")
        assert no is not None and no.outcome == Outcome.UNSUPPORTED, kernel
        assert word in no.why and no.why != NO_OPERATOR, kernel


def test_cases_of_ascend_950_are_refused_on_devices_before_it():
    case = next(row.case for row in rows_alone("DynamicMxQuant"))
    assert refusal(case, registry.find_operator, "npu") is None
    for device in ("ATLAS_800_A2_376T_64G", "ATLAS_800_A3_752T_128G_DIE"):
        no = refusal_of_device(case, device)
        assert no is not None and no.outcome == Outcome.UNSUPPORTED and "950PR" in no.reason
        assert refusal_of_device(record("2,2").case, device) is None
    assert refusal_of_device(case, "ATLAS_950") is None
    sent = DistributeCall("MoeDistributeDispatchV3", 8, 64, 256, 4, ep_size=8, capacity=8).case
    no = refusal_of_device(sent, "ATLAS_800_A2_376T_64G")
    assert (
        refusal(sent, registry.find_operator, "npu") is None
        and no is not None
        and "kernel" in no.why
    )


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
def test_error_in_a_declaration_is_left_to_the_session(mistake):
    constraints = (Constraint("something is required", mistake),)
    wrong = OpSpec(
        "Add", "torch.add", signature="x -> y", reference=lambda *_: None, constraints=constraints
    )
    assert refusal(record("2,2").case, lambda kernel_type: wrong, "cpu") is None


def test_a_rejection_names_the_rule_and_the_case():
    with pytest.raises(CaseRejected, match="Add 3 FLOAT") as rejection:
        ADD.check(record("3").case, "cpu")
    assert NEEDS_TWO_DIMS.text in str(rejection.value)


@pytest.mark.parametrize("kernel", DISTRIBUTE_KERNELS)
@pytest.mark.parametrize(("ranks", "is_taken"), [(1, False), (2, True), (512, True), (1024, False)])
def test_expert_exchange_on_npus_requires_a_supported_number_of_ranks(kernel, ranks, is_taken):
    case = DistributeCall(kernel, 8, 64, 2048, 4, ep_size=ranks, capacity=8).case
    no = refusal(case, registry.find_operator, "npu")
    if is_taken:
        assert no is None
        return
    assert no is not None and (no.outcome, no.why) == (Outcome.REJECTED, NO_SUCH_WORLD)
    assert [
        word for word in (f"{ranks} rank", "2 ", "768", "EP Size") if word not in no.reason
    ] == []
    assert refusal(case, registry.find_operator, "cuda") is None  # the reference has no such limit
