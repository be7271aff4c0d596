"""Rows of graphs: which rows of a decode step compiled by torchair can be replayed, how slots are
distinguished by their kind, and the references of kernels that only graphs launch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.model.case import Case, Slot
from collector.model.measurement import Outcome
from collector.ops.catalog.attention.fused_attention import (
    _INCRE_KINDS as INCREMENTAL,
)
from collector.ops.catalog.attention.fused_attention import (
    _INFER_KINDS as FUSED,
)
from collector.ops.reading import as_declared
from collector.ops.refusals import refusal
from collector.ops.registry import all_ops, find_operator
from tests.fixtures.op_rows import rows_alone
from tests.fixtures.row_checks import failing
from tests.unit.collector.ops.conftest import CpuMaker

HALF = "FLOAT16"
QKV = "1,16,1,128;1,2,4096,128;1,2,4096,128"
HALVES = ";".join([HALF] * 3)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("cells", "outcome", "words"),
    [
        (
            ("IncreFlashAttention", f"{QKV};1,1,1,4096", f"{HALVES};BOOL", "1,16,1,128", HALF),
            None,
            "",
        ),
        (
            ("SplitVD", "3,1,1,128", HALF, ";".join(["3,1,1,32"] * 4), ";".join([HALF] * 4)),
            None,
            "",
        ),
        (
            ("Scatter", "1,2,4096,128;1;1,2,1,128", f"{HALF};INT64;{HALF}", "1,2,4096,128", HALF),
            None,
            "",
        ),
        (("ConcatV2D", "1,16,1,64;1,16,1,64", f"{HALF};{HALF}", "1,16,1,128", HALF), None, ""),
        (("Range", ";;", "INT32;FLOAT;INT32", "4096", "FLOAT"), None, ""),
        (("GatherV2", "3,1,1,24;;1", f"{HALF};INT64;INT64", "1,1,24", HALF), None, ""),
        (
            ("Mul", "1,1024;1024", "FLOAT;FLOAT", "1,1024", HALF),
            Outcome.UNSUPPORTED,
            "graph & 16 bits",
        ),
        (
            ("AutomaticBufferFusionOp", "8;8", f"{HALF};{HALF}", "8", HALF),
            Outcome.UNSUPPORTED,
            "graph",
        ),
        (
            ("MatmulReduceScatter", "64,32;32,16", f"{HALF};{HALF}", "8,16", HALF),
            Outcome.UNSUPPORTED,
            "scatters & over ranks",
        ),
        (
            ("SwigluGroupQuant", "8,64", HALF, "8,32;8,1", "FLOAT8_E4M3FN;FLOAT"),
            Outcome.UNSUPPORTED,
            "kernel & 950PR",
        ),
        (("Data", "8", "INT64", "8", "INT64"), Outcome.UNSUPPORTED, "graph & input"),
        (
            ("SplitVD", "6,6", HALF, "3,6;3,6;6,6", f"{HALF};{HALF};{HALF}"),
            Outcome.REJECTED,
            "dimension",
        ),
        (
            ("Scatter", "2,8,8;2;2,4,4", f"{HALF};INT64;{HALF}", "2,8,8", HALF),
            Outcome.REJECTED,
            "updates & dimension",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_rows_of_a_decode_step_are_replayed_or_refused_with_a_reason(
    case_of, cells, outcome, words
):
    no = refusal(case_of(*cells), find_operator, "npu")
    if outcome is None:
        assert no is None
    else:
        assert no is not None and no.outcome is outcome
        assert [word for word in words.split(" & ") if word not in no.why] == []


@pytest.mark.fast
def test_weight_in_blocks_is_multiplied_unconverted():
    slots = (Slot((1, 1024), HALF, "ND"), Slot((64, 192, 16, 16), HALF, "FRACTAL_NZ"))
    case = Case("MatMul", slots, (Slot((1, 3072), HALF, "ND"),), "static")
    assert refusal(case, find_operator, "npu") is None
    assert find_operator("MatMul").flops(case) == 2 * 1024 * 3072


@pytest.mark.fast
def test_row_reads_the_same_with_and_without_its_absent_inputs(case_of):
    op = find_operator("IncreFlashAttention")
    of_graph = case_of(op.kernel, f"{QKV};1,1,1,4096", f"{HALVES};BOOL", "1,16,1,128", HALF)
    absent = ";DT_UNDEFINED" * 10
    alone = case_of(
        op.kernel,
        f"{QKV};;1,1,1,4096{';' * 10}",
        f"{HALVES};DT_UNDEFINED;BOOL{absent}",
        *("1,16,1,128", HALF),
    )
    assert (op.graph_of(alone), op.rejection_reason(alone, "npu")) == (None, "")
    assert op.flops(of_graph) == op.flops(alone) > 0
    assert op.runtime(of_graph) == op.runtime(alone)


@pytest.mark.fast
def test_single_list_of_lengths_is_ambiguous(case_of):
    fused = "FusedInferAttentionScore"
    lengths = case_of(fused, f"{QKV};1", f"{HALVES};INT64", "1,16,1,128", HALF)
    no = refusal(lengths, find_operator, "npu")
    assert no is not None and "several slots" in no.why
    pages = case_of(
        fused, "3,4,1,16;9,16,32;9,16,32;3;3,2", f"{HALVES};INT64;INT32", "3,4,1,16", HALF
    )
    assert (
        find_operator(fused).rejection_reason(pages, "npu") == ""
    )  # pages require the keys' lengths
    assert "lengths" in refusal(pages, find_operator, "npu").why


@pytest.mark.thorough
@pytest.mark.fast
@given(data=st.data())
@pytest.mark.parametrize(
    ("kernel", "kinds"), [("IncreFlashAttention", INCREMENTAL), ("FusedInferAttentionScore", FUSED)]
)
def test_tensor_is_never_read_as_that_of_another_slot(kernel, kinds, data):
    """For any optional tensors of a graph: its row is read with each at its own slot, or it is
    refused."""
    given_slots = data.draw(st.sets(st.sampled_from(sorted(kinds)), min_size=1))
    given_slots |= {other for slot in given_slots for other in kinds[slot].requires}
    given_slots |= {other for slot in given_slots for other in kinds[slot].requires}
    tensors = {
        slot: Slot(
            (2,) * data.draw(st.sampled_from(sorted(kinds[slot].dims))),
            data.draw(st.sampled_from(sorted(kinds[slot].dtypes))),
            "ND",
        )
        for slot in sorted(given_slots)
    }
    op, query = find_operator(kernel), Slot((1, 4, 1, 16), HALF, "ND")
    of_graph = Case(kernel, (query,) * 3 + tuple(tensors.values()), (query,))
    absent = Slot(None, "", "")
    behind = tuple(tensors.get(i, absent) for i in range(3, len(op.slots)))
    alone = replace(of_graph, inputs=(query,) * 3 + behind)
    of_graph = as_declared(of_graph)
    complaint = op.rejection_reason(of_graph, "npu")
    if not complaint:
        assert op.rejection_reason(alone, "npu") == ""
        assert op.runtime(of_graph) == op.runtime(alone) != {}
    elif "several slots" not in complaint:
        assert op.rejection_reason(alone, "npu") != ""


@pytest.mark.fast
def test_row_without_its_absent_inputs_is_read_as_the_same_or_refused():
    """For every operator: the rest is read as the row itself, or is refused."""
    read = set()

    def check(case):
        op = find_operator(case.kernel_type)
        present = tuple(
            slot
            for position, slot in enumerate(case.inputs or ())
            if slot.shape is not None or position not in op.optional
        )
        of_graph = as_declared(replace(case, inputs=present))
        if present == (case.inputs or ())[: len(present)] or op.rejection_reason(of_graph, "npu"):
            return
        assert op.flops(of_graph) == op.flops(case)
        assert op.traffic(of_graph) == op.traffic(case)
        assert op.runtime(of_graph) == op.runtime(case)
        read.add(op.kernel)

    cases = [record.case for op in all_ops() for record in rows_alone(op.kernel)]
    assert failing(cases, check, Case.describe) == []
    attention = {f"{kind}FlashAttention" for kind in ("Incre", "Prompt")}
    grouped = "GroupedMatmulSwigluQuant"
    assert read == {*attention, "FusedInferAttentionScore", "QuantBatchMatmulV3", grouped}


def test_scatter_writes_updates_at_the_position_of_their_batch(torch, build, launch, case_of):
    case = case_of("Scatter", "2,3,9,4;2;2,3,1,4", "FLOAT;INT64;FLOAT", "2,3,9,4", "FLOAT")
    call = build(case)
    cache, indices, updates, axis = call.args
    expected = cache.clone()
    for batch, start in enumerate(indices.tolist()):
        expected[batch].narrow(axis - 1, start, 1).copy_(updates[batch])
    (out,) = launch(case, call)
    assert torch.equal(out, expected)


def test_split_returns_consecutive_parts_and_gather_one_row(torch, launch, case_of):
    three = ";".join(["FLOAT"] * 3)
    split = case_of("SplitVD", "3,24", "FLOAT", "3,8;3,12;3,4", three)
    call = find_operator("SplitVD").build(split, CpuMaker(torch))
    parts = find_operator("SplitVD").run_reference(torch, *call.args)
    assert torch.equal(torch.cat(parts, 1), call.args[0])
    assert [part.shape[1] for part in parts] == [8, 12, 4]

    one = case_of("GatherV2", "3,1,1,24;;1", "FLOAT;INT64;INT64", "1,1,24", "FLOAT")
    call = find_operator("GatherV2").build(one, CpuMaker(torch))
    row = find_operator("GatherV2").run_reference(torch, *call.args)
    assert torch.equal(row, call.args[0][1])


def test_masked_keys_do_not_contribute(torch, case_of):
    op = find_operator("IncreFlashAttention")
    case = case_of(
        op.kernel,
        *("2,4,1,16;2,2,64,16;2,2,64,16;2,1,1,64", "FLOAT;FLOAT;FLOAT;BOOL", "2,4,1,16", "FLOAT"),
    )
    call = op.build(replace_dtype(case), CpuMaker(torch, wide=True))
    query, key, value, mask, *_ = call.args
    assert not mask.any()
    mask[:, :, :, 40:] = True
    out = op.run_reference(torch, *call.args, **call.kwargs)
    wide = [side[:, :, :40].repeat_interleave(2, 1) for side in (key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(query, *wide)
    torch.testing.assert_close(out, expected)


def replace_dtype(case: Case) -> Case:
    """Return the case in 16 bits, as the kernel requires; the maker makes float32 of them."""
    slots = tuple(
        replace(slot, dtype=HALF if slot.dtype == "FLOAT" else slot.dtype)
        for slot in case.inputs or ()
    )
    return replace(case, inputs=slots, outputs=(replace((case.outputs or ())[0], dtype=HALF),))
