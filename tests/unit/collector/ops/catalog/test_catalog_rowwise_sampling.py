"""Sampling's filters against a loop over sorted tokens."""

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected

pytestmark = pytest.mark.torch

KERNELS = pytest.mark.parametrize("kernel", ["ApplyTopKTopPCustom", "ApplyTopKTopPWithSorted"])
LIMITS = pytest.mark.parametrize(("p", "k"), [("3", "3"), ("3", ""), ("", "3")])


def sampling_case(case_of, kernel, p, k):
    cells = (f"3,80;3,80;{p};{k}", "FLOAT;INT32;FLOAT;INT32", "3,80", "FLOAT")
    return case_of(kernel, *cells)


@KERNELS
@LIMITS
def test_unlikely_tokens_are_filtered(torch, case_of, build, launch, kernel, p, k):
    case = sampling_case(case_of, kernel, p, k)
    ordered, numbers, top_p, top_k = (call := build(case)).args
    (actual,) = launch(case, call)
    for row in range(3):
        kept = list(range(80 - int(top_k[row]), 80)) if k else list(range(80))
        probabilities = torch.softmax(ordered[row, kept].double(), -1)
        if p:
            seen = probabilities.cumsum(-1)
            kept = [kept[i] for i in range(len(kept)) if seen[i] > 1 - top_p[row]] or [79]
        expected = torch.full((80,), torch.finfo(torch.float32).min)
        for place in kept:
            expected[numbers[row, place]] = ordered[row, place]
        assert torch.equal(actual[row], expected)


@KERNELS
@LIMITS
def test_an_npu_gets_unsorted_logits(torch, case_of, kernel, p, k):
    case = sampling_case(case_of, kernel, p, k)
    call = find_operator(kernel).npu.build(case, CpuMaker(torch))
    logits, *rest = (*call.args, *call.kwargs.values())
    assert not torch.equal(logits, logits.sort(-1).values)
    assert [limit is not None for limit in rest] == [bool(p), bool(k)]


def test_top_k_returns_the_largest_values_and_their_positions(torch, case_of, build, launch):
    case = case_of("TopKV2", "6,40;", "FLOAT;INT32", "6,5;6,5", "FLOAT;INT32")
    call = build(case)
    x, count, _ = call.args
    values, places = launch(case, call)
    assert (count, places.dtype) == (5, torch.int32)
    assert torch.equal(x.sort(-1, descending=True).values[:, :5], values)
    assert torch.equal(x.gather(1, places.long()), values)
    for out, words in (("6,41;6,41", "count <= n"), ("5,5;5,5", "'values'"), ("6,5;6,4", "count")):
        wrong = case_of("TopKV2", "6,40;", "FLOAT;INT32", out, "FLOAT;INT32")
        assert_rejected(wrong, "npu", words)


def test_penalties_lower_the_logits_of_tokens_that_occurred(torch, case_of, build, launch):
    shapes, dtypes = "3,8;3,8;3,8;3,8;3;3;3", "FLOAT;BOOL;BOOL;INT32;FLOAT;FLOAT;FLOAT"
    case = case_of("apply_all_penalties_kernel", shapes, dtypes, "3,8", "FLOAT")
    call = build(case)
    logits, prompt, output, counts, repetition, frequency, presence = (
        argument.tolist() for argument in call.args
    )
    expected = []
    for i, row in enumerate(logits):
        lowered = []
        for j, logit in enumerate(row):
            factor = repetition[i] if prompt[i][j] or output[i][j] else 1
            lowered.append(logit / factor if logit > 0 else logit * factor)
            lowered[-1] -= frequency[i] * counts[i][j] + presence[i] * (counts[i][j] > 0)
        expected.append(lowered)
    (found,) = launch(case, call)
    torch.testing.assert_close(found, torch.tensor(expected))
    assert found is call.args[0]


def test_occurrences_of_tokens_are_counted(torch, case_of, build, launch):
    case = case_of("token_bin_counts_and_mask_kernel", "3,40", "INT64", "3,8", "INT32")
    call = build(case)
    expected = [torch.bincount(row, minlength=8) for row in call.args[0]]
    torch.testing.assert_close(launch(case, call)[0], torch.stack(expected).int())
