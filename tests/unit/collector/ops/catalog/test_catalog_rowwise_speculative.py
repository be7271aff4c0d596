"""Speculative decoding against loops over requests and their drafts."""

from types import SimpleNamespace

import pytest

from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_alone
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected

pytestmark = pytest.mark.torch

GREEDY, OF_ONE = "rejection_greedy_sample_triton", "rejection_greedy_sample_spec_len_1_triton"
RANDOM, RECOVERED = "rejection_random_sample_kernel", "sample_recovered_tokens_kernel"
BLOCK = "rejection_random_sample_block_verify_kernel"

OPTIONS = SimpleNamespace(enable_block_verify=False)


def get_ascend_config():
    """Return an engine's configuration, by the name that functions of vLLM-Ascend know."""
    return SimpleNamespace(rejection_sampler_config=OPTIONS)


def sampled(ends, accepted, tokens, bonus, skipped, most):
    """Return the tokens of each request, -1 where there is none."""
    found, start = [], 0
    for request, end in enumerate(ends):
        row = []
        if not skipped[request]:
            for i in range(start, end):
                row.append(tokens[i])
                if not accepted[i]:
                    break
            else:
                row.append(bonus[request])
        found.append(row + [-1] * (most + 1 - len(row)))
        start = end
    return found


def test_greedy_sampling_accepts_equal_tokens(torch):
    ends, drafts = torch.tensor([3, 3, 5]), torch.tensor([4, 5, 6, 7, 8])
    bonus, greedy = torch.tensor([[20], [21], [22]]), torch.tensor([True, True, False])
    for argmax in ([4, 5, 6, 7, 8], [4, 9, 6, 9, 8], [9, 9, 9, 9, 9]):
        given = torch.tensor(argmax)
        (accepted, skipped) = (drafts == given).tolist(), (~greedy).tolist()
        expected = sampled(ends.tolist(), accepted, argmax, bonus.view(-1).tolist(), skipped, 3)
        found = find_operator(GREEDY).reference(
            torch, [3, 0, 2], ends, drafts, given, bonus, greedy
        )
        assert found.tolist() == expected


def test_random_sampling_replaces_the_first_draft_that_is_not_accepted(torch):
    ends, drafts = torch.tensor([2, 5]), torch.tensor([0, 1, 2, 1, 0])
    target = torch.rand((5, 3), generator=torch.Generator().manual_seed(3))
    bonus, recovered = torch.tensor([20, 21]), torch.tensor([10, 11, 12, 13, 14])
    for threshold in (0.0, 0.4, 0.6, 1.1):
        uniform = torch.full((5,), threshold)
        accepted = [target[i, token].item() >= threshold for i, token in enumerate(drafts)]
        tokens = [
            (draft if yes else other).item()
            for draft, other, yes in zip(drafts, recovered, accepted, strict=True)
        ]
        expected = sampled(ends.tolist(), accepted, tokens, bonus.tolist(), [False, False], 3)
        given = drafts, target, bonus, recovered, uniform, torch.tensor([False, False])
        assert find_operator(RANDOM).reference(torch, [2, 3], ends, *given).tolist() == expected


def test_blocks_of_drafts_are_accepted_by_products_of_probabilities(torch):
    ends, drafts = torch.tensor([3, 3, 7]), torch.tensor([0, 1, 2, 1, 0, 2, 2])
    random = torch.Generator().manual_seed(3)
    target = torch.rand((7, 3), generator=random)
    bonus, recovered = torch.tensor([20, 21, 22]), torch.arange(10, 17)
    lasts = set()
    for _ in range(60):
        uniform, expected, start = torch.rand(7, generator=random), [], 0
        for request, end in enumerate(ends.tolist()):
            product = threshold = 1.0
            last = start - 1
            for i in range(start, end):
                product *= target[i, drafts[i]].item()
                threshold *= uniform[i].item()
                last = i if product >= threshold else last
            row = drafts[start : last + 1].tolist()
            row.append((bonus[request] if last + 1 == end else recovered[last + 1]).item())
            expected.append(row + [-1] * (5 - len(row)))
            lasts.add(last + 1 - start)
            start = end
        given = drafts, target, bonus, recovered, uniform, torch.tensor([False] * 3)
        assert find_operator(BLOCK).reference(torch, [3, 0, 4], ends, *given).tolist() == expected
    assert len(lasts) >= 4


def test_recovered_tokens_are_never_the_drafts(torch):
    ends, drafts = torch.tensor([1, 3]), torch.tensor([2, 0, 1])
    target, q = torch.rand((3, 4)) + 0.1, torch.rand((2, 4)) + 0.1
    expected = []
    for i, draft in enumerate(drafts.tolist()):
        scores = (target[i] / q[0 if i < 1 else 1]).tolist()
        scores[draft] = 0
        expected.append(scores.index(max(scores)))
    assert (
        find_operator(RECOVERED).reference(torch, [1, 2], ends, drafts, target, q).tolist()
        == expected
    )


def test_rows_have_outputs_that_do_not_depend_on_random_numbers(torch, build, launch):
    """On an NPU the functions draw numbers themselves: every draft is accepted, and the token that
    replaces it is certain."""
    for kernel in (GREEDY, OF_ONE, RANDOM, BLOCK):
        for row in rows_alone(kernel):
            call = build(row.case)
            counts, ends, drafts, *_ = call.args
            (found,) = launch(row.case, call)
            assert max(counts) == found.shape[1] - 1
            start = 0
            for request, end in enumerate(ends.tolist()):
                assert found[request, : end - start].tolist() == drafts[start:end].tolist()
                assert (found[request] >= 0).sum() == end - start + 1
                start = end
    (row,) = rows_alone(RECOVERED)
    call = build(row.case)
    assert launch(row.case, call)[0].tolist() == (call.args[2] + 1).tolist()


def test_an_npu_gets_logits_that_make_drafts_certain(torch):
    (row,) = rows_alone(RANDOM)
    _, _, drafts, logits, _, ones = find_operator(RANDOM).npu.build(row.case, CpuMaker(torch)).args
    certain = logits.softmax(-1).gather(1, drafts.long().unsqueeze(1))
    assert torch.equal(certain, torch.ones_like(certain))
    assert ones.tolist() == [1.0] * 4
    metadata = []
    find_operator(RANDOM).npu.run(lambda *args: metadata.append(args[-1]), *[[1]] * 5, ones)
    assert metadata[0].all_random
    assert not metadata[0].all_greedy


def test_block_verification_is_an_option_of_the_call_alone():
    found = find_operator(BLOCK).npu.run(lambda *args: vars(OPTIONS).copy(), *[[1]] * 5, None)
    assert found == {"enable_block_verify": True}
    assert not OPTIONS.enable_block_verify


def test_numbers_of_requests_are_repeated_for_their_tokens(torch):
    x, ends = torch.tensor([7.0, 8.0, 9.0]), torch.tensor([2, 2, 5])
    found = find_operator("expand_kernel").reference(torch, x, ends, 5)
    assert found.tolist() == [7.0, 7.0, 9.0, 9.0, 9.0]


def test_tokens_behind_rejected_drafts_are_skipped(torch):
    ends, valid = torch.tensor([2, 2, 3]), torch.tensor([1, 1, 2])
    starts = torch.tensor([0, 3, 4, 6])
    last, rejected = find_operator("prepare_inputs_padded_kernel").reference(
        torch, ends, valid, starts
    )
    assert rejected.tolist() == [2, 0, 0]
    assert last.tolist() == [0, 3, 5]


def test_one_draft_of_each_greedy_request_is_a_kernel_of_its_own(case_of):
    shapes, dtypes = "4;4;4;4,1", "INT32;INT32;INT64;INT32"
    assert_rejected(case_of(GREEDY, shapes, dtypes, "4,2", "INT32"), "npu", "has_is_greedy")
    wrong = case_of(OF_ONE, "4;4;4,1", "INT32;INT64;INT32", "4,3", "INT32")
    assert_rejected(wrong, "npu", "'tokens'")
    few = "4;8;8,96;4,1;8;8;4", "INT32;INT32;FLOAT;INT32;INT32;FLOAT;BOOL"
    assert_rejected(case_of(BLOCK, *few, "4,3", "INT32"), "npu", "columns > 3")
    many = case_of("expand_kernel", "2;2", "FLOAT;INT32", "300", "FLOAT")
    assert_rejected(many, "npu", "t <= 128 * requests")
