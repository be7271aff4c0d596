"""Routing of experts against loops over tokens, choices and experts."""

import math

import pytest

from collector.ops.catalog.moe._routing import make_choices
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch


def sorted_choices(choices):
    """Return (expert, token, choice) in the order of the experts."""
    return sorted(
        (expert, token, choice)
        for token, row in enumerate(choices.tolist())
        for choice, expert in enumerate(row)
    )


def test_choices_of_a_token_are_distinct_experts(torch):
    choices = make_choices(CpuMaker(torch), 50, 4, 6, "INT32")
    assert choices.dtype == torch.int32
    assert all(len(set(row)) == 4 for row in choices.tolist())
    assert {number for row in choices.tolist() for number in row} == set(range(6))


@pytest.mark.parametrize("kept", [24, 15])
def test_token_permute(torch, case_of, build, launch, kept):
    case = case_of("MoeTokenPermute", "8,4;8,3", "FLOAT;INT32", f"{kept},4;24", "FLOAT;INT32")
    tokens, choices, rows = (call := build(case)).args
    assert rows == kept
    permuted, places = launch(case, call)
    order = sorted_choices(choices)
    assert torch.equal(permuted, torch.stack([tokens[token] for _, token, _ in order])[:kept])
    went = {(token, choice): place for place, (_, token, choice) in enumerate(order)}
    assert places.tolist() == [went[token, choice] for token in range(8) for choice in range(3)]


@pytest.mark.parametrize("dtype", ["FLOAT", "INT8"])
def test_exchanged_tokens_are_sorted_by_their_experts(torch, case_of, build, launch, dtype):
    case = case_of("MoeTokenPermute", "24,4;24", f"{dtype};INT32", "24,4;24", f"{dtype};INT32")
    call = build(case)
    tokens, experts, _ = call.args
    permuted, places = launch(case, call)
    assert torch.equal(permuted, tokens[experts.argsort(stable=True)])
    assert torch.equal(permuted[places.long()], tokens)


@pytest.mark.parametrize("kept, moved", [(24, 8 + 24), (15, 8 + 15), (3, 3 + 3)])
def test_a_permuted_token_is_read_once(case_of, kept, moved):
    case = case_of("MoeTokenPermute", "8,4;8,3", "FLOAT;INT32", f"{kept},4;24", "FLOAT;INT32")
    assert find_operator("MoeTokenPermute").traffic(case) == moved * 4 * 4 + 24 * 4 + 24 * 4


def test_unpermute_undoes_permute(torch, case_of, launch, build):
    case = case_of("MoeTokenPermute", "8,4;8,3", "FLOAT;INT32", "24,4;24", "FLOAT;INT32")
    tokens, *_ = (call := build(case)).args
    permuted, places = launch(case, call)
    back = find_operator("MoeTokenUnpermute").run_reference
    torch.testing.assert_close(back(torch, permuted, places, torch.full((8, 3), 1 / 3)), tokens)


def test_token_unpermute(torch, case_of, build, launch):
    case = case_of("MoeTokenUnpermute", "12,5;12;4,3", "FLOAT;INT32;FLOAT", "4,5", "FLOAT")
    rows, places, probs = (call := build(case)).args
    assert sorted(places.tolist()) == list(range(12))
    expected = [
        sum(probs[token, c].double() * rows[places[3 * token + c]].double() for c in range(3))
        for token in range(4)
    ]
    (actual,) = launch(case, call)
    torch.testing.assert_close(actual.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_gating_with_groups(torch, case_of, build, launch):
    """DeepSeek's: the best 4 of 8 groups, by the two best experts of each."""
    case = case_of("MoeGatingTopK", "6,256;256", "FLOAT;FLOAT", "6,8;6,8;", "FLOAT;INT32;FLOAT")
    (x, k), how = (call := build(case)).args, call.kwargs
    assert (k, how["group_count"], how["k_group"]) == (8, 8, 4)
    weights, chosen, norm = launch(case, call)
    assert norm is None
    for row in range(6):
        plain = [1 / (1 + (-value).exp()) for value in x[row].double()]
        scores = [value + bias for value, bias in zip(plain, how["bias"].double(), strict=True)]
        groups = [range(32 * group, 32 * group + 32) for group in range(8)]
        groups.sort(key=lambda group: -sum(sorted(scores[e] for e in group)[-2:]))
        allowed = [expert for group in groups[:4] for expert in group]
        best = sorted(allowed, key=lambda expert: -scores[expert])[:8]
        assert chosen[row].tolist() == best
        total = sum(plain[expert] for expert in best)
        expected = torch.stack([plain[expert] / total for expert in best])
        torch.testing.assert_close(weights[row].double(), expected, rtol=1e-5, atol=1e-6)


def test_gating_by_softmax(torch, case_of, build, launch):
    case = case_of(
        "MoeGatingTopK", "6,16;", "FLOAT;DT_UNDEFINED", "6,4;6,4;6,16", "FLOAT;INT32;FLOAT"
    )
    x, _ = (call := build(case)).args
    weights, chosen, norm = launch(case, call)
    expected = torch.softmax(x.double(), -1)
    torch.testing.assert_close(norm.double(), expected, rtol=1e-5, atol=1e-6)
    best = expected.sort(-1, descending=True)
    assert torch.equal(chosen.long(), best.indices[:, :4])
    torch.testing.assert_close(weights.double(), best.values[:, :4], rtol=1e-5, atol=1e-6)


def test_gating_top_k_softmax(torch, case_of, build, launch):
    shapes = ("2,3,8;2,3", "FLOAT;BOOL", ";".join(["2,3,2"] * 3), "FLOAT;INT32;INT32")
    case = case_of("MoeGatingTopKSoftmax", *shapes)
    x, finished, _ = (call := build(case)).args
    assert not finished.any()
    weights, chosen, numbers = launch(case, call)
    expected = torch.softmax(x, -1).sort(-1, descending=True)
    torch.testing.assert_close(weights, expected.values[..., :2])
    assert torch.equal(chosen.long(), expected.indices[..., :2])
    assert numbers.reshape(6, 2).tolist() == [[row, row + 6] for row in range(6)]


ROUTING = pytest.mark.parametrize("kernel", ["MoeInitRoutingV3", "MoeInitRoutingCustom"])


@ROUTING
@pytest.mark.parametrize("scaled", [False, True])
def test_init_routing(torch, case_of, build, launch, scaled, kernel):
    scale = "6" if scaled else ""
    cells = (f"6,5;6,2;{scale};", "FLOAT;INT32;FLOAT;DT_UNDEFINED")
    case = case_of(kernel, *cells, "12,5;12;4;12", "FLOAT;INT32;INT64;FLOAT")
    x, choices = (call := build(case)).args
    expanded, places, counts, scales = launch(case, call)
    order = sorted_choices(choices)
    assert torch.equal(expanded, torch.stack([x[token] for _, token, _ in order]))
    went = {(token, choice): place for place, (_, token, choice) in enumerate(order)}
    assert places.tolist() == [went[token, choice] for token in range(6) for choice in range(2)]
    assert counts.tolist() == [sum(e == expert for e, _, _ in order) for expert in range(4)]
    if scaled:
        assert torch.equal(scales, torch.stack([call.kwargs["scale"][t] for _, t, _ in order]))


@ROUTING
@pytest.mark.parametrize("smoothed", [False, True])
def test_init_routing_quantises_each_row_to_its_maximum(
    torch, case_of, build, launch, smoothed, kernel
):
    scale = "4,5" if smoothed else ""
    cells = (f"6,5;6,2;{scale};", "FLOAT;INT32;FLOAT;DT_UNDEFINED")
    case = case_of(kernel, *cells, "12,5;12;4;12", "INT8;INT32;INT64;FLOAT")
    x, choices = (call := build(case)).args
    assert call.kwargs["quant_mode"] == 1
    expanded, _, _, scales = launch(case, call)
    for place, (expert, token, _) in enumerate(sorted_choices(choices)):
        row = x[token].double()
        if smoothed:
            row = row * call.kwargs["scale"][expert].double()
        assert expanded[place].abs().max() == 127
        torch.testing.assert_close(scales[place].double(), row.abs().max() / 127, rtol=1e-5, atol=0)
        error = (expanded[place].double() * scales[place].double() - row).abs().max()
        assert error <= 0.51 * scales[place]


@pytest.mark.parametrize("whole", [False, True])
def test_finalize_routing(torch, case_of, build, launch, whole):
    more = "4,5;4,5;7,5;4,3;4,3" if whole else ";;;4,3;"
    dtypes = "FLOAT;INT32;FLOAT;FLOAT;FLOAT;FLOAT;INT32"
    case = case_of("MoeFinalizeRoutingV2", f"12,5;12;{more}", dtypes, "4,5", "FLOAT")
    rows, places, skip1, skip2, bias, scales, experts, _ = (call := build(case)).args
    expected = []
    for token in range(4):
        out = torch.zeros(5, dtype=torch.float64)
        for choice in range(3):
            row = rows[places[3 * token + choice]].double()
            if whole:
                row = row + bias[experts[token, choice]].double()
            out += scales[token, choice].double() * row
        expected.append(out + skip1[token].double() + skip2[token].double() if whole else out)
    (actual,) = launch(case, call)
    torch.testing.assert_close(actual.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_finalize_routing_passes_the_layout_of_choices(torch, case_of):
    cells = ("12,5;12;;;;4,3;", "FLOAT;INT32;FLOAT;FLOAT;FLOAT;FLOAT;INT32", "4,5", "FLOAT")
    case, seen = case_of("MoeFinalizeRoutingV2", *cells), []
    op = find_operator("MoeFinalizeRoutingV2")
    call = op.build(case, CpuMaker(torch))
    op.npu.run(lambda *args, **named: seen.append((args, named)), *call.args)
    (rows, *skips, scales, places, experts), named = seen[0]
    assert named == {"drop_pad_mode": 2, "k": 3}
    assert [*skips, experts] == [None] * 4
    assert (rows.shape, scales.shape, places.shape) == ((12, 5), (4, 3), (12,))


@pytest.mark.parametrize("scaled", [False, True])
def test_re_routing(torch, case_of, build, launch, scaled):
    scale = "20" if scaled else ""
    case = case_of(
        "MoeReRouting",
        f"20,5;3,4;{scale}",
        "DT_BF16;INT32;FLOAT",
        "20,5;20;20;4",
        "DT_BF16;FLOAT;INT32;INT32",
    )
    tokens, counts = (call := build(case)).args
    assert counts.sum() == 20 and counts.min() >= 1
    actual, scales, index, totals = launch(case, call)
    segments, start = {}, 0
    for rank in range(3):
        for expert in range(4):
            segments[expert, rank] = range(start, start := start + int(counts[rank, expert]))
    order = [row for _, segment in sorted(segments.items()) for row in segment]
    assert index.tolist() == order
    assert torch.equal(actual, tokens[order])
    assert totals.tolist() == counts.sum(0).tolist()
    if scaled:
        assert torch.equal(scales, call.kwargs["per_token_scales"][order])


def test_compute_expert_tokens(torch, case_of, build, launch):
    case = case_of("MoeComputeExpertTokens", "30", "INT32", "7", "INT32")
    rows, experts = (call := build(case)).args
    assert rows.tolist() == sorted(rows.tolist()) and experts == 7
    (ends,) = launch(case, call)
    assert ends.tolist() == [sum(row <= expert for row in rows.tolist()) for expert in range(7)]


def dispatch_case(case_of, sent="DT_BF16"):
    return case_of(
        "MoeDistributeDispatchV2",
        "6,32;6,2;;;6,2",
        "DT_BF16;INT32;DT_UNDEFINED;DT_UNDEFINED;FLOAT",
        "12,32;12;1536;4;4;0;12",
        f"{sent};FLOAT;INT32;INT64;INT32;INT32;FLOAT",
    )


def test_a_dispatch_within_one_rank_sorts_by_expert(torch, case_of, build, launch):
    case = dispatch_case(case_of)
    x, ids = (call := build(case)).args
    sent, _, info, counts, ends, of_tp, weights = launch(case, call)
    order = sorted_choices(ids)
    assert torch.equal(sent, torch.stack([x[token] for _, token, _ in order]))
    assert info[:36].view(12, 3).tolist() == [[0, token, choice] for _, token, choice in order]
    assert counts.tolist() == [sum(e == expert for e, _, _ in order) for expert in range(4)]
    assert ends.tolist() == counts.cumsum(0).tolist() and of_tp.numel() == 0
    given = call.kwargs["expert_scales"]
    assert weights.tolist() == [given[token, choice].item() for _, token, choice in order]


def test_combine_returns_the_weighted_rows_of_each_token(torch, case_of, build, launch):
    cells = ("12,8;6,2;1536;4;6,2", "DT_BF16;INT32;INT32;INT32;FLOAT", "6,8", "DT_BF16")
    case = case_of("MoeDistributeCombineV2", *cells)
    rows, ids, info, ends, weights = (call := build(case, wide=True)).args
    order = sorted_choices(ids)
    assert info[:36].view(12, 3).tolist() == [[0, token, choice] for _, token, choice in order]
    expected = torch.zeros(6, 8, dtype=torch.float64)
    for row, (_, token, choice) in zip(rows.double(), order, strict=True):
        expected[token] += row * weights[token, choice].double()
    assert ends[-1] == 12
    (actual,) = launch(case, call)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def weights_of(x, experts):
    """The weights of a token's experts in DeepSeek-V4: they sum to 1.5."""
    scores = {expert: math.sqrt(math.log1p(math.exp(x[expert]))) for expert in experts}
    return [1.5 * scores[expert] / sum(scores.values()) for expert in experts]


def test_a_token_of_the_vocabulary_has_its_experts(torch, case_of, build, launch):
    cells = "4,16;;4;9,3", "FLOAT;DT_UNDEFINED;INT64;INT32", "4,3;4,3;4,16", "FLOAT;INT32;FLOAT"
    case = case_of("MoeGatingTopKHash", *cells)
    x, _ = (call := build(case)).args
    ids, table = (call.kwargs[name].tolist() for name in ("input_ids", "tid2eid"))
    weights, chosen, _ = launch(case, call)
    assert chosen.tolist() == [table[token] for token in ids]
    expected = [weights_of(*pair) for pair in zip(x.tolist(), chosen.tolist(), strict=True)]
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_a_bias_changes_the_choice_and_not_the_weights(torch, case_of, build, launch):
    cells = "4,16;16;;", "FLOAT;FLOAT;DT_UNDEFINED;DT_UNDEFINED", "4,3;4,3;", "FLOAT;INT32;FLOAT"
    case = case_of("MoeGatingTopKHash", *cells)
    x, _ = (call := build(case)).args
    call.kwargs["bias"].zero_()[5] = 100
    weights, chosen, _ = launch(case, call)
    assert (chosen[:, 0] == 5).all()
    best = [sorted(set(range(16)) - {5}, key=row.__getitem__)[:-3:-1] for row in x.tolist()]
    assert chosen[:, 1:].tolist() == best
    expected = [weights_of(*pair) for pair in zip(x.tolist(), chosen.tolist(), strict=True)]
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-5, atol=1e-6)
