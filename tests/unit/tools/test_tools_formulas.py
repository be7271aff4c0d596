"""Recordings of several loads become expressions of the load, or an error that names the
exception."""

from collections import Counter
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.engine.recorded_calls import PassTokens
from collector.workloads.deployments import deployed_step, laid_out, load_names
from collector.workloads.layout import Layout
from collector.workloads.recorded_step import Prompts, RecordedLaunch, RecordedMessage, Recording
from collector.workloads.serving import Batch, Phase
from tests.unit.collector.engine.made import Made, MadeCall
from tools.recordings.formulas import (
    Constants,
    differences,
    solved_deployment,
)
from tools.recordings.layout_formulas import solved_family
from tools.recordings.solver import NotSolved, solve

pytestmark = pytest.mark.fast

CONSTANTS = Constants(pages=7919, table_width=61)
ONCE, EACH = 5, 1  # in each of five layers, and outside of them


def launch(kernel, shapes, written, times=ONCE, drafts=0, **extra):
    cells = {"Input Shapes": f'"{shapes}"', "Output Shapes": f'"{written}"'}
    one = RecordedLaunch(f"ACLNN aclnn{kernel}()", kernel, cells, extra, True)
    return MadeCall(one, times, drafts)


def decode(requests, keys, tp=4):
    """Simulate a pass over ranks, padded to the sizes 8 and 16, as the software would launch it."""
    size = 8 if requests <= 8 else 16
    lengths = ",".join([str(keys)] * requests + ["0"] * (size - requests))
    launches = [
        launch("MatMulV2", f"{size},64;{192 // tp},64", f"{size},{192 // tp}"),
        launch("Fill", "1;", f"{257 - requests}", EACH),
        launch(
            "FusedInferAttentionScore",
            f"{size},{8 // tp},128;7919,128;{size},61",
            f"{size},{8 // tp},128",
            **{"Runtime actual_seq_lengths_kv_values": lengths, "Runtime num_heads": str(8 // tp)},
        ),
    ]
    if size > requests:
        launches.append(launch("Fill", "1;", f"{size - requests}", EACH))
    if requests > 1:
        launches.append(launch("Transpose", f"{tp},{requests},9;3", f"{requests},{tp},9", EACH))
    part = 2 * 64 * -(-size // tp)
    message = MadeCall(RecordedMessage("HCCL", "all_gather", part, "bfloat16", tp, True), ONCE)
    return Made("decode", requests, 1, keys, tuple(launches), (message,))


LOADS = [(1, 90), (3, 70), (4, 50), (7, 33), (16, 80)]


def recording(passes, tp=4):
    return Recording(
        *("tiny", "0" * 64, "vllm-ascend-0.18", {"tp": tp, "dp": 1, "ep": 1}, "A3", {}),
        *({"graph_sizes": [8, 16]}, {"vllm": "1"}, "", tuple(one.recorded() for one in passes)),
    )


def solved(passes, tp=4):
    loads = [PassTokens("decode", one.requests, 1, one.keys) for one in passes]
    ranges = [(1, 16, loads)]
    return solved_deployment(recording(passes, tp), str(Layout(tp)), ranges, CONSTANTS)


def test_any_load_follows_from_a_few_recordings():
    """Other requests than the recorded ones, whose padding and pages follow from the load."""
    found = solved([decode(*load) for load in LOADS])
    step = deployed_step(found, Batch(Phase.DECODE, 10, 1, 300))
    kernels = [
        (x.record.kernel_type, x.record.cells["Input Shapes"], x.times) for x in step.kernels
    ]
    pages = 16 * 3  # requests of the graph, of which each may have 300 keys in pages of 128
    assert kernels == [
        ("MatMulV2", '"16,64;48,64"', 5),
        ("Fill", '"1;"', 1),
        ("Fill", '"1;"', 1),
        ("FusedInferAttentionScore", f'"16,2,128;{pages},128;16,3"', 5),
        ("Transpose", '"4,10,9;3"', 1),
    ]
    written = [x.record.cells["Output Shapes"] for x in step.kernels]
    assert written[1:3] == ['"247"', '"6"']
    lengths = step.kernels[3].record.extra["Runtime actual_seq_lengths_kv_values"]
    assert lengths == ",".join(["300"] * 10 + ["1"] * 6)
    (message,) = step.collectives
    assert (message.message_bytes, message.times) == (2 * 64 * 4, 5)
    whole = deployed_step(found, Batch(Phase.DECODE, 16, 1, 300))  # nothing is padded
    assert [x.record.kernel_type for x in whole.kernels].count("Fill") == 1
    one = deployed_step(found, Batch(Phase.DECODE, 1, 1, 300))
    assert "Transpose" not in [x.record.kernel_type for x in one.kernels]


def test_a_launch_of_several_sizes_is_one_where_nothing_pads():
    """Copies of requests and of those of the graph have equal calls in a pass without padding."""

    def copies(one):
        size = 8 if one.requests <= 8 else 16
        twice = 2 * (1 + 5)
        if size == one.requests:
            more = [launch("TensorMove", size, size, twice)]
        else:
            more = [launch("TensorMove", n, n, 1 + 5) for n in (one.requests, size)]
        return replace(one, launches=(*one.launches, *more))

    found = solved([copies(decode(*load)) for load in LOADS])
    step = deployed_step(found, Batch(Phase.DECODE, 10, 1, 300))
    moves = [
        (one.record.cells["Input Shapes"], one.times)
        for one in step.kernels
        if one.record.kernel_type == "TensorMove"
    ]
    assert moves == [('"10"', 1 + 5), ('"16"', 1 + 5)]


def test_sizes_of_loads_with_equal_tokens_are_refused():
    """Two loads of three and seven requests have eight tokens: one cannot tell a constant."""
    small = [replace(one, launches=(*one.launches, launch("Sort", "8,9", "8,9", EACH)))
             for one in (decode(3, 70), decode(7, 33))]  # fmt: skip
    with pytest.raises(NotSolved, match="expected a further such load"):
        solved([*small, *(decode(*load) for load in LOADS if load[0] == 16)])


def mixed(decodes, keys, prompts, each, earlier):
    """Latent attention of decodes and of prompts, which has a part for their earlier tokens: it
    cuts keys and values of both, and the queries once for each part."""
    tokens, total = prompts * each, prompts * earlier
    of_decodes = ",".join([str(keys)] * decodes)
    ends, earlier_ends = (
        ",".join(str(n * (at + 1)) for at in range(prompts)) for n in (each, earlier)
    )
    queries, values = "Runtime actual_seq_lengths_values", "Runtime actual_seq_lengths_kv_values"
    launches = [
        launch("InterleaveRope", f"{decodes},64", f"{decodes},64", **{values: of_decodes}),
        launch("FusedInferAttentionScore", f"{tokens},4,64", f"{tokens},4,64", **{queries: ends}),
        *[launch("Slice", f"{tokens},4,128;3;3", f"{tokens},4,64")] * 2,
    ]
    times = 2 * ONCE if earlier else ONCE
    launches.append(launch("Slice", f"{tokens},4,96;3;3", f"{tokens},4,64", times))
    if decodes > 1:
        launches.append(launch("Transpose", f"4,{decodes},9;3", f"{decodes},4,9"))
    if earlier:
        launches += [launch("Slice", f"{total},4,128;3;3", f"{total},4,64")] * 2
        lists = {queries: ends, values: earlier_ends}
        shapes = f"{tokens},4,64;{total},4,64"
        launches.append(launch("FusedInferAttentionScore", shapes, f"{tokens},4,64", **lists))
    load = Prompts(prompts, each, earlier + each)
    return Made("mixed", decodes, 1, keys, tuple(launches), (), load)


def test_prompts_with_earlier_tokens_next_to_decodes_follow_from_a_few():
    loads = ((1, 90, 1, 40, 0), (3, 70, 2, 11, 64), (5, 33, 3, 25, 17), (2, 80, 3, 19, 0))
    passes = [mixed(*load) for load in loads]
    tokens = [PassTokens("mixed", x.requests, 1, x.keys, x.prompts) for x in passes]
    ranges = [(1, 256, tokens)]
    found = solved_deployment(recording(passes), str(Layout(4)), ranges, CONSTANTS)
    batch = Batch(Phase.PREFILL, 2, 30, 100, mixed_decodes=4, followed_keys=55)
    assert sized_launches(deployed_step(found, batch)) == {
        ("InterleaveRope", "4,64"): 5,
        ("FusedInferAttentionScore", "60,4,64"): 5,
        ("FusedInferAttentionScore", "60,4,64;140,4,64"): 5,
        ("Slice", "60,4,128;3;3"): 10,
        ("Slice", "140,4,128;3;3"): 10,
        ("Slice", "60,4,96;3;3"): 10,
        ("Transpose", "4,4,9;3"): 5,
    }
    (context,) = (x.record for x in deployed_step(found, batch).kernels if ends_of(x) == "70,140")
    assert context.extra["Runtime actual_seq_lengths_values"] == "30,60"
    without = deployed_step(found, replace(batch, keys=30, mixed_decodes=1))
    assert sized_launches(without) == {
        ("InterleaveRope", "1,64"): 5,
        ("FusedInferAttentionScore", "60,4,64"): 5,
        ("Slice", "60,4,128;3;3"): 10,
        ("Slice", "60,4,96;3;3"): 5,
    }
    assert ends_of(without.kernels[0]) == "55"


def test_passes_that_verify_predicted_tokens_lack_the_layer_that_predicts():
    """Decodes of an engine with MTP have two tokens of each request, and padding of whole requests:
    graphs have 8 and 16 tokens."""
    once = launch("ArgMaxV2", "1,9", "1", 0, drafts=1)
    passes = []
    for requests, keys in ((1, 90), (3, 70), (4, 50), (7, 33)):
        size = 8 if requests <= 4 else 16
        launches = (
            launch("MatMulV2", f"{size},64;48,64", f"{size},48", ONCE, drafts=1),
            launch("ArgMaxV2", f"{2 * requests},9", f"{2 * requests}", EACH),
            launch("Fill", "1;", f"{257 - requests}", EACH),
            once,
        )
        passes.append(Made("decode", requests, 2, keys, launches, ()))
    tokens = [PassTokens("decode", one.requests, 2, one.keys) for one in passes]
    found = recording(passes)
    deployment = solved_deployment(found, str(Layout(4)), [(1, 16, tokens)], CONSTANTS, predicted=1)
    model = Batch(Phase.DECODE, 5, 2, 300, predicted=1)
    assert sized_launches(deployed_step(deployment, model)) == {
        ("MatMulV2", "16,64;48,64"): 5,
        ("ArgMaxV2", "10,9"): 1,
        ("Fill", "1;"): 1,
    }
    assert differences(deployment, passes[0].recorded(), CONSTANTS, predicted=1) == []
    odd = replace(passes[0], launches=passes[0].launches[1:])
    (only,) = differences(deployment, odd.recorded(), CONSTANTS, predicted=1)
    assert only.startswith("derived 5 MatMulV2")
    for other in (replace(model, predicted=0, queries=1), replace(model, is_draft=True)):
        with pytest.raises(BadInput, match="of 1 to 16 tokens with 1 predicted"):
            deployed_step(deployment, other)


def sized_launches(step):
    found = Counter()
    for one in step.kernels:
        cells = one.record.cells["Input Shapes"].strip('"')
        found[one.record.kernel_type, cells] += one.times
    return found


def ends_of(kernel):
    return kernel.record.extra.get("Runtime actual_seq_lengths_kv_values")


def test_a_single_padding_token_has_a_kernel_of_its_own():
    """Tokens are padded to four ranks: of several ones a scalar is broadcast, one is copied."""
    passes = []
    for tokens in (5, 6, 7, 8, 17):
        pad = -tokens % 4
        fill = launch("BroadcastTo" if pad > 1 else "TensorMove", "1", f"{pad}", EACH)
        launches = (launch("MatMulV2", f"{tokens},64", f"{tokens},48"), *([fill] if pad else []))
        passes.append(Made("prefill", 1, tokens, tokens, launches, ()))
    tokens = [PassTokens("prefill", 1, one.queries, one.keys) for one in passes]
    found = solved_deployment(recording(passes), str(Layout(4)), [(1, 32, tokens)], CONSTANTS)
    for count, kernels in ((21, ["BroadcastTo"]), (23, ["TensorMove"]), (24, [])):
        step = deployed_step(found, Batch(Phase.PREFILL, 1, count, count))
        assert [one.record.kernel_type for one in step.kernels][1:] == kernels, count


def test_a_launch_of_one_load_has_no_size_of_its_tokens():
    """Passes without padding cut another tensor: with one such load, 16 may be a constant."""
    passes = []
    for tokens in (5, 7, 16, 22, 24):
        cut = launch("Slice", f"{tokens},10,128;3;3", f"{tokens},1,128")
        launches = (launch("MatMulV2", f"{tokens},64;48,64", f"{tokens},48"), cut)
        launches = launches if tokens % 4 == 0 else launches[:1]
        passes.append(Made("prefill", 1, tokens, tokens, launches, ()))
    tokens = [PassTokens("prefill", 1, one.queries, one.keys) for one in passes]
    found = solved_deployment(recording(passes), str(Layout(4)), [(1, 32, tokens)], CONSTANTS)
    cuts = [one.cells["Input Shapes"] for one in found.ranges[0].launches if one.kernel == "Slice"]
    assert cuts == ['"tokens,10,128;3;3"']
    with pytest.raises(NotSolved, match="Slice .*: launched by prefill of .* only"):
        solved_deployment(recording(passes[:4]), str(Layout(4)), [(1, 32, tokens[:4])], CONSTANTS)


def test_launches_for_each_request_are_counted_by_the_load():
    """As sparse attention does: each request has two numbers, some of them equal."""
    passes = []
    for requests, keys in LOADS:
        more = [launch("Fill", "1;", "", 2 * requests - 1)]
        more += [launch("Fill", "1;", "", EACH), launch("Cast", "", "", EACH)]
        one = decode(requests, keys)
        passes.append(replace(one, launches=(*one.launches, *more)))
    step = deployed_step(solved(passes), Batch(Phase.DECODE, 10, 1, 300))
    found = [(x.record.kernel_type, x.times) for x in step.kernels if x.layer != "dense"]
    assert ("Fill", 20) in found and ("Cast", 1) in found


def test_lengths_of_the_first_rank_end_with_its_tokens():
    """Prompts over four ranks, each of which attends from a quarter of all tokens."""
    passes = []
    for requests, queries, keys in ((1, 11, 40), (2, 8, 30), (5, 2, 9)):
        part = -(-requests * queries // 4)
        ends = [min(queries * (at + 1), part) for at in range(requests)]
        held = [
            keys - max(0, queries * (at + 1) - part) if queries * at < part else 0
            for at in range(requests)
        ]
        lists = {"Runtime actual_seq_lengths_values": ",".join(map(str, ends))}
        lists["Runtime actual_seq_lengths_kv_values"] = ",".join(map(str, held))
        attention = launch("SparseFlashAttention", f"{part},64", f"{part},64", **lists)
        passes.append(Made("prefill", requests, queries, keys, (attention,), ()))
    tokens = [PassTokens("prefill", one.requests, one.queries, one.keys) for one in passes]
    found = solved_deployment(recording(passes), str(Layout(4)), [(1, 32, tokens)], CONSTANTS)
    (kernel,) = deployed_step(found, Batch(Phase.PREFILL, 3, 5, 100)).kernels  # 4 of 15 tokens
    assert kernel.record.extra["Runtime actual_seq_lengths_values"] == "4,4,4"
    assert kernel.record.extra["Runtime actual_seq_lengths_kv_values"] == "99,0,0"


def test_linear_attention_has_states_and_chunks_of_each_request():
    """Blocks of four pages: a cache has four times as many pages as states, and tables of 64."""
    passes = []
    for requests, queries in ((1, 70), (2, 1300), (3, 600)):
        tokens = requests * queries
        chunks, wide = (requests * -(-queries // size) for size in (64, 1216))
        shapes = f"{tokens},8;{chunks},2;{wide},2;7919,8;{4 * 7919},128;{requests},64"
        launches = (launch("chunk_scan", shapes, f"{tokens},8"),)
        passes.append(Made("prefill", requests, queries, queries, launches, ()))
    tokens = [PassTokens("prefill", one.requests, one.queries, one.keys) for one in passes]
    found = replace(recording(passes), settings={"graph_sizes": [], "block_size": 512})
    found = solved_deployment(found, str(Layout(4)), [(1, 8192, tokens)], CONSTANTS)
    (kernel,) = deployed_step(found, Batch(Phase.PREFILL, 2, 1217, 1217)).kernels
    shapes = kernel.record.cells["Input Shapes"]
    assert shapes == '"2434,8;40,2;4,2;16,8;21,128;2,10"'


def test_experts_get_equal_parts_of_the_rows():
    """Two choices of each token of a rank, for three experts of four ranks. Without a dispatch, the
    first rank gets from each an equal part, and what is left is for the first experts."""
    layout = Layout(4, ep=4)
    ends, constants = "Runtime group_list_values", replace(CONSTANTS, experts=12)
    passes = []
    for tokens in (12, 28, 44):
        part = tokens // 4
        each = [2 * part // 3 + (at < 2 * part % 3) for at in range(3)]
        listed = ",".join(str(sum(each[: at + 1])) for at in range(3))
        rows = 4 * sum(2 * part // 12 + (at < 2 * part % 12) for at in range(3))
        shapes = f"{rows},64;{2 * part},64"
        launches = (launch("GroupedMatmul", shapes, f"{2 * part},48", **{ends: listed}),)
        size = rows * 64 * 2
        message = MadeCall(RecordedMessage("HCCL", "all_to_all", size, "bfloat16", 4, False), ONCE)
        passes.append(Made("prefill", 1, tokens, tokens, launches, (message,)))
    tokens = [PassTokens("prefill", 1, one.queries, one.keys) for one in passes]
    found = solved_deployment(recording(passes), str(layout), [(1, 128, tokens)], constants)
    step = deployed_step(found, Batch(Phase.PREFILL, 1, 40, 40))
    (kernel,), (message,) = step.kernels, step.collectives
    assert message.message_bytes == 24 * 64 * 2
    assert kernel.record.cells["Input Shapes"] == '"24,64;20,64"'
    assert kernel.record.extra[ends] == "7,14,20"
    (first,) = passes[0].launches
    odd = replace(first, what=replace(first.what, extra={ends: "1,2,6"}))
    passes[0] = replace(passes[0], launches=(odd,))
    with pytest.raises(NotSolved, match="no equal parts"):
        solved_deployment(recording(passes), str(layout), [(1, 128, tokens)], constants)


def test_launches_without_an_expression_are_refused():
    names = [{"pages": 7919, "table_width": 61, "tokens": n, "sampled": n} for n in (3, 5, 11)]
    rest = dict.fromkeys(load_names(Batch(Phase.DECODE, 1, 1, 1), 1), 1)
    names = [rest | one for one in names]
    assert solve([13, 19, 37], names, "x") == "4 + 3 * tokens"
    halves = [one | {"tokens": 8 * n, "part": n, "requests": 4 * n} for n, one in enumerate(names)]
    assert solve([0, 4, 8], halves, "x") == "requests"  # and not 4 * part: of any number of ranks
    assert solve([15838] * 3, names, "x") == "2 * pages"
    compressed = [
        one | {"tokens": n, "requests": 2} for one, n in zip(names, (40, 99, 7), strict=True)
    ]
    assert solve([12, 26, 3], compressed, "x") == "min(tokens, tokens // 4 + requests)"
    pooled = [one | {"pages": 0, "states": 0, "pool": 31991} for one in names]
    sizes = {
        31991: "pool",
        61: "table_width",
        2: "ceil_div(table_width, 32)",
        976: "16 * table_width",
    }
    for size, text in sizes.items():
        assert solve([size] * 3, pooled, "x") == text
    with pytest.raises(NotSolved, match="x: no expression has the values"):
        solve([9, 25, 121], names, "x")
    odd = decode(7, 33)
    other = launch("Sort", "7,9", "7,9", EACH)
    odd = replace(odd, launches=(*odd.launches, other))
    with pytest.raises(NotSolved, match="Sort"):
        solved([*(decode(*load) for load in LOADS if load[0] != 7), odd])
    with pytest.raises(NotSolved, match="at least 3 loads"):
        solved([decode(*load) for load in LOADS[:2]])


def test_layout_is_derived_from_others_and_checks_them():
    """Ranks 2 and 8 determine 4, which is refused if it launches something else."""
    two, four, eight = (solved([decode(*load, tp) for load in LOADS], tp) for tp in (2, 4, 8))
    family = solved_family([two, eight], four, "tp=2..8,dp=1,ep=1")
    assert laid_out(family, Layout(4)) == four
    launches = {one["kernel"]: one for one in family["ranges"][0]["launches"]}
    product, attention = launches["MatMulV2"], launches["FusedInferAttentionScore"]
    assert product["cells"]["Input Shapes"] == '"tokens,64;{192 // tp},64"'
    assert attention["columns"]["Runtime num_heads"] == "{8 // tp}"
    (range_,) = four.ranges
    (message,) = range_.messages
    odd = replace(four, ranges=(replace(range_, messages=(replace(message, group_size=3),)),))
    with pytest.raises(NotSolved, match="derived MessagePattern"):
        solved_family([two, eight], odd, "tp=2..8,dp=1,ep=1")
    turned = replace(eight.ranges[0], launches=eight.ranges[0].launches[::-1])
    in_any_order = replace(eight, ranges=(turned,))
    assert solved_family([two, in_any_order], four, "tp=2..8,dp=1,ep=1") == family
    fewer = replace(turned, launches=turned.launches[1:])
    with pytest.raises(NotSolved, match=r"tp=8.*: no launch like LaunchPattern"):
        solved_family([two, replace(eight, ranges=(fewer,))], four, "tp=2..8,dp=1,ep=1")
    with pytest.raises(NotSolved, match=r"tp=2.*: only this layout launches LaunchPattern"):
        solved_family([replace(eight, ranges=(fewer,)), two], four, "tp=2..8,dp=1,ep=1")
    cubic = replace(eight.ranges[0], messages=(replace(message, group_size=512),))
    with pytest.raises(NotSolved, match="group_size: no expression of"):
        solved_family([two, four, replace(eight, ranges=(cubic,))], four, "tp=2..8,dp=1,ep=1")
