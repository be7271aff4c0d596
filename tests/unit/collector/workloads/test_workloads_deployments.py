"""Deployments of the package: the kernels of real steps of Qwen3-32B, unrecorded loads, and the
description of each file."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.engine.environments import RELEASES
from collector.ops.registry import find_operator
from collector.workloads.deployments import (
    batch_of,
    check_deployment,
    deployed_step,
    find_deployment,
    layouts_in,
    model_step,
    packaged_layouts,
    packaged_releases,
)
from collector.workloads.layout import layout_of
from collector.workloads.models import bundled_config, find_decoder
from collector.workloads.serving import Batch, Phase
from tools.recordings.recipes import FOLDER, RECIPES

pytestmark = pytest.mark.fast

RELEASE = "vllm-ascend-0.18"
OF_ATTENTION = {
    "qwen3-next-80b-a3b": 12,
    "qwen3.5-397b-a17b": 15,
}  # layers; the others have linear attention
ATTENTION = (
    *("FusedInferAttentionScore", "RINGMLAPrefillBF16Kernel", "SparseFlashAttention"),
    "SparseAttnSharedkv",
)
OF_MIXED = ("deepseek-v4-flash",)  # whose decodes and prompts have attention apart
DECODE = Batch(Phase.DECODE, 9, 1, 4096)
QWEN = "tp=16,nz=2,sequence_split"


def config(model):
    """The config.json of the decoder of a bundled model."""
    values = json.loads(bundled_config(model))
    return values.get("text_config", values)


def counted(step):
    """`kernel shapes` -> launches; and messages."""
    found = Counter()
    for one in step.kernels:
        shapes = one.record.cells.get("Input Shapes", "").strip('"')
        found[f"{one.record.kernel_type} {shapes}"] += one.times
    for one in step.collectives:
        found[f"{one.operation} {one.message_bytes} bytes over {one.group_size}"] += one.times
    return found


def test_step_of_qwen3_32b_has_the_kernels_of_published_step_traces():
    """Reports of msmodeling (March 2026) of Qwen3-32B BF16 tp=16 on Atlas A3: sizes and counts of
    products, norms and heads, messages; a decode of 16, and a prompt of 4,104 tokens, which 16
    ranks split. They also have Sort in sampling, which a later release does without."""
    for release in ("vllm-ascend-0.18", "vllm-ascend-0.23"):
        if ("qwen3-32b", release) not in packaged_layouts():
            continue
        found = find_deployment("qwen3-32b", release, layout_of(QWEN))
        decode = counted(deployed_step(found, Batch(Phase.DECODE, 16, 1, 4096)))
        prefill = counted(deployed_step(found, Batch(Phase.PREFILL, 1, 4104, 4104)))
        for step, tokens, part in ((decode, 16, 16), (prefill, 4112, 257)):
            expected = {
                f"MatMulV2 {tokens},5120;320,48,16,16": 64,  # qkv (768,5120)
                f"MatMulV2 {tokens},512;32,320,16,16": 64,  # o (5120,512)
                f"MatMulV2 {tokens},5120;320,200,16,16": 64,  # gate_up (3200,5120)
                f"MatMulV2 {tokens},1600;100,320,16,16": 64,  # down (5120,1600)
                f"SwiGlu {tokens},3200": 64,
                f"AddRmsNormBias {part},5120;{part},5120;5120;": 128,
                f"split_qkv_rmsnorm_rope_kernel {tokens},768;128": 63,
            }
            assert {name: step[name] for name in expected} == expected, release
        sampled = {"MatMulV2 16,5120;9496,5120": 1, "SoftmaxV2 16,151936": 1}
        sampled |= {"RandomUniform 16,151936": 1, "ArgMaxV2 16,151936;": 1}
        assert {name: decode[name] for name in sampled} == sampled
        assert decode["all_reduce 163840 bytes over 16"] == 129
        sent = {
            "reduce_scatter 2631680 bytes over 16": 129,
            "all_gather 2631680 bytes over 16": 129,
        }
        assert {name: prefill[name] for name in sent} == sent


def test_step_of_deepseek_v3_has_the_kernels_of_published_step_traces():
    """The same reports of DeepSeek-V3 W8A8 tp=8 dp=2 ep=16: (n,k) of every product in blocks, with
    61 layers, of which 3 are dense. In prefills they have fused attention, as 0.23, the wheel of
    0.18.0 ring attention. The shared expert of 0.23 quantises together with its activation."""
    layout = layout_of("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8")
    fused, ring = "FusedInferAttentionScore", "RINGMLAPrefillBF16Kernel"
    for release, of_prefill, of_shared in (
        ("vllm-ascend-0.18", ring, {"SwiGlu": 61, "DynamicQuant": 122}),
        ("vllm-ascend-0.23", fused, {"SwiGlu": 3, "DynamicQuant": 64, "DequantSwigluQuant": 58}),
    ):
        found = find_deployment("deepseek-v3", release, layout)
        for batch in (Batch(Phase.PREFILL, 1, 4099, 4099), Batch(Phase.DECODE, 5, 1, 4096)):
            step = deployed_step(found, batch)
            products, kernels = Counter(), Counter()
            for one in step.kernels:
                kernels[one.record.kernel_type] += one.times
                if one.record.kernel_type == "QuantBatchMatmulV3":
                    columns, rows, *_ = one.record.case.inputs[1].shape  # blocks of 32 x 16
                    products[columns * 32, rows * 16] += one.times
            assert products == {
                (2112, 7168): 61,  # q_a and kv_a
                (3072, 1536): 61,  # q_b
                (7168, 2048): 61 + 58,  # o, and down of the shared expert
                (4096, 7168): 58,  # gate and up of the shared expert
                (4608, 7168): 3,
                (7168, 2304): 3,
            }
            counted_kernels = {
                "AscendQuantV2": 183,
                "DispatchFFNCombine": 58,
                "InterleaveRope": 61,
                "KvRmsNormRopeCache": 61,
                "MoeGatingTopK": 58,
                "AddRmsNormBias": 122,
                of_prefill if batch.queries > 1 else fused: 61,
            } | of_shared
            assert {name: kernels[name] for name in counted_kernels} == counted_kernels, release
            sent = [one for one in step.collectives if one.operation == "reduce_scatter"]
            tokens = 4104 if batch.queries > 1 else 8
            assert {(one.message_bytes, one.times) for one in sent} == {(tokens * 7168 // 4, 65)}
        absorbed = {"BatchMatMulV2": 61, "TransposeBatchMatMul": 61}  # of the decode
        assert {name: kernels[name] for name in absorbed} == absorbed


def test_every_file_describes_its_recorded_loads():
    for (model, release), files in packaged_layouts().items():
        decoder = find_decoder(model)
        for layout in (one for name in files for one in layouts_in(name)):
            found = check_deployment(decoder, layout, release)
            assert found is not None
            assert (found.model, found.release, found.layout) == (model, release, str(layout))
            version = release.removeprefix("vllm-ascend-")
            assert found.wheels["vllm-ascend"].startswith(version)
            for one in found.ranges:
                for load in one.loads:
                    batch = batch_of(one, load)
                    step = deployed_step(found, batch)
                    kinds = [x.times for x in step.kernels if x.record.kernel_type in ATTENTION]
                    # latent attention has a launch for decodes, one for new tokens of prompts, and
                    # one for their earlier tokens
                    has_earlier = one.phase != Phase.DECODE and batch.keys > batch.queries
                    is_in_parts = decoder.is_latent and "index_topk" not in config(model)
                    parts = 1 + (one.phase == "mixed") + has_earlier if is_in_parts else 1
                    parts += one.phase == "mixed" and model in OF_MIXED
                    layers = OF_ATTENTION.get(model, config(model)["num_hidden_layers"])
                    assert sum(kinds) == parts * layers, (model, str(layout), batch)


def test_files_are_those_of_the_recipes():
    assert sorted(one.name for one in FOLDER.iterdir()) == sorted(one.file_name for one in RECIPES)


def test_experts_in_bf16_are_fused_with_weights_of_the_ranks_share():
    """Sizes of the models' own config.json."""
    for name, layers, layout, weights in (
        ("glm-4.5", 89, "tp=8,dp=2,ep=16", "10,5120,3072;10,1536,5120"),
        ("glm-4.5-air", 45, "tp=8,ep=8", "16,4096,2816;16,1408,4096"),
        ("qwen3-235b-a22b", 94, "tp=8,dp=2,ep=16", "8,4096,3072;8,1536,4096"),
    ):
        found = find_deployment(name, RELEASE, layout_of(f"{layout},sequence_split"))
        hidden = config(name)["hidden_size"]
        for batch, rows in ((Batch(Phase.PREFILL, 1, 4099, 4099), 513), (DECODE, 2)):
            step = counted(deployed_step(found, batch))
            shapes = f"{rows},{hidden};{weights};{rows},8;;;{rows},8"
            assert step[f"DispatchFFNCombineBF16 {shapes}"] == layers


def test_experts_that_are_apart_are_dispatched_or_exchanged():
    """Few tokens are dispatched, to equal rows of each expert. Of many the ranks exchange the rows:
    513 tokens of a rank have 4104 choices, of which each expert gets an equal part, and the first
    8 (or 104 of 160) one more: the first rank has the rows of 16 or 10, of 8 or 16 ranks."""
    for name, layers, layout, rows, weights in (
        ("glm-4.5-air", 45, "tp=8,ep=8", 8 * (16 * 32 + 8), "16,4096,2816"),
        ("glm-4.5", 89, "tp=8,dp=2,ep=16", 16 * (10 * 25 + 10), ""),
        ("deepseek-v3", 58, "tp=8,dp=2,ep=16,quantisation=w8a8", 16 * (16 * 16 + 8), ""),
    ):
        text = f"{layout},sequence_split,experts=apart"
        found = find_deployment(name, RELEASE, layout_of(text))
        hidden, ranks = config(name)["hidden_size"], layout_of(text).ep
        few = counted(deployed_step(found, DECODE))
        kernels = Counter(name.split()[0] for name in few.elements())
        assert kernels["MoeDistributeDispatchV2"] == kernels["MoeDistributeCombineV2"] == layers
        assert few[f"MoeDistributeDispatchV2 2,{hidden};2,8;;2;"] == layers
        many = counted(deployed_step(found, Batch(Phase.PREFILL, 1, 4099, 4099)))
        kernels = Counter(name.split()[0] for name in many.elements())
        assert kernels["MoeTokenUnpermute"] == 2 * layers
        assert many[f"MoeTokenUnpermute {rows},{hidden};{rows}"] == layers
        assert many[f"all_to_all {rows * hidden * 2} bytes over {ranks}"] == layers
        if weights:
            assert many[f"GroupedMatmul {rows},{hidden};{weights};;;;;;16;"] == layers


def test_kimi_k2_has_the_products_of_its_config():
    """64 heads, an intermediate size of 18432, and 384 experts of 2048, of which one is shared."""
    layout = layout_of("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8")
    found = find_deployment("kimi-k2", RELEASE, layout)
    step = deployed_step(found, DECODE)
    products = Counter()
    for one in step.kernels:
        if one.record.kernel_type == "QuantBatchMatmulV3":
            columns, rows, *_ = one.record.case.inputs[1].shape  # blocks of 32 x 16
            products[columns * 32, rows * 16] += one.times
    assert products == {
        (2112, 7168): 61,
        (1536, 1536): 61,  # 8 heads of 192
        (7168, 1024): 61,
        (4096, 7168): 60,
        (7168, 2048): 60,
        (4608, 7168): 1,
        (7168, 2304): 1,
    }
    (experts,) = (x for x in step.kernels if x.record.kernel_type == "DispatchFFNCombine")
    assert (experts.times, experts.record.case.inputs[1].shape[0]) == (60, 384 // 16)


def test_gpt_oss_has_windows_in_half_of_its_layers():
    """A window of 128 tokens in 18 layers; not in decodes in graphs, which 0.18 captures with
    another attention."""
    gpt_oss, layout = find_decoder("gpt-oss-120b"), layout_of("tp=4,ep=4,sequence_split")
    window = "Runtime pre_tokens"
    for batch, windows in ((Batch(Phase.PREFILL, 1, 4099, 4099), {"128": 18, None: 18}),
                           (DECODE, {None: 36})):  # fmt: skip
        found = Counter()
        for one in model_step(gpt_oss, layout, batch, RELEASE).kernels:
            if one.record.kernel_type == "FusedInferAttentionScore":
                found[one.record.extra.get(window)] += one.times
        assert found == windows
    for other, release in ((replace(layout, tp=8, ep=8), RELEASE), (layout, "vllm-ascend-0.13")):
        with pytest.raises(
            BadInput, match="opmeter model record gpt-oss-120b|cannot be: expected one of"
        ):
            model_step(gpt_oss, other, DECODE, release)


def test_minimax_m2_normalises_queries_and_keys_over_all_ranks():
    """48 query and 8 key heads of 128, and 256 experts of 1536, on four ranks. The variances of
    queries and keys, two FLOAT numbers of a token, are summed over the ranks in each layer."""
    layout, release = layout_of("tp=4,ep=4,sequence_split"), "vllm-ascend-0.23"
    step = model_step(
        find_decoder("minimax-m2"), layout, Batch(Phase.PREFILL, 1, 4099, 4099), release
    )
    found = counted(step)
    assert found["_split_qkv_and_compute_local_qk_var_kernel 4100,2048"] == 62
    assert found[f"all_reduce {4100 * 2 * 4} bytes over 4"] == 62
    experts = "64,3072,3072;64,1536,3072"
    assert found[f"DispatchFFNCombineBF16 1025,3072;{experts};1025,8;;;1025,8"] == 62


def test_kimi_k2_thinking_has_int4_weights_of_experts():
    """24 of 384 experts on a rank, with scales of 32 rows; each of 16 ranks sends 8 choices of 98
    tokens, which are 2 for each of 384 experts and one more for the first 16."""
    kimi = find_decoder("kimi-k2-thinking")
    layout = layout_of("tp=16,ep=16,sequence_split,quantisation=w4a16,experts=apart")
    step = model_step(kimi, layout, Batch(Phase.PREFILL, 1, 1563, 1563), RELEASE)
    products = Counter()
    for one in step.kernels:
        if one.record.kernel_type == "GroupedMatmul":
            assert one.record.cells["Input Data Types"].startswith("DT_BF16;INT4;")
            products[one.record.cells["Input Shapes"].strip('"')] += one.times
    assert products == {
        "1024,7168;24,7168,4096;;;;24,224,4096;24,224,4096;24;": 60,
        "1024,2048;24,2048,7168;;;;24,64,7168;24,64,7168;24;": 60,
    }
    with pytest.raises(BadInput, match="opmeter model record kimi-k2-thinking"):
        model_step(kimi, replace(layout, dp=2, tp=8), DECODE, RELEASE)


def test_deepseek_v4_has_keys_of_4_and_of_128_tokens():
    """43 layers: 2 with a window alone, 21 with keys of 4 tokens too, whose indexer chooses them,
    and 20 with keys of 128. The operators accept the rows of prompts and of padded decodes."""
    layout, release = layout_of("tp=8,ep=8,sequence_split"), "vllm-ascend-0.23"
    deepseek = find_decoder("deepseek-v4-flash")
    checked = ("SparseAttnSharedkv", "VllmQuantLightningIndexer", "Compressor")
    for tokens, near, far, batch in (
        (1001, 1001 // 4 + 1, 1001 // 128 + 1, Batch(Phase.PREFILL, 1, 1001, 1001)),
        (16, 16, 16, replace(DECODE, keys=9000)),
    ):
        step = model_step(deepseek, layout, batch, release)
        found, expected = Counter(), Counter(SparseAttnSharedkv=43, VllmQuantLightningIndexer=21)
        for keys, times in ((f"{near},128", 21), (f"{near},512", 21), (f"{far},512", 20)):
            expected[f"Compressor {keys}"] += times
        for one in step.kernels:
            kernel = one.record.kernel_type
            if kernel not in checked:
                continue
            find_operator(kernel).check(one.record.case, "npu")
            written = one.record.cells["Output Shapes"].strip('"').partition(";")[0]
            found[f"{kernel} {written}" if kernel == "Compressor" else kernel] += one.times
        assert found == expected
        experts = "32,4096,4096;32,2048,4096"  # 32 of 256 experts of 2048
        part = -(-tokens // 8)
        shapes = f"{part},4096;{experts};{part},6;;;{part},6"
        assert counted(step)[f"DispatchFFNCombineBF16 {shapes}"] == 43


def test_glm_5_2_chooses_keys_in_21_of_its_layers():
    step = model_step(
        find_decoder("glm-5.2"), layout_of("tp=8,dp=2,ep=16"), DECODE, "vllm-ascend-0.23"
    )
    found = Counter()
    for one in step.kernels:
        found[one.record.kernel_type] += one.times
    assert (found["LightningIndexer"], found["SparseFlashAttention"]) == (21, 78)


def test_qwen3_vl_rotates_by_three_positions():
    """36 layers, 32 and 8 heads of 128; three positions of each token of text."""
    found = counted(model_step(find_decoder("qwen3-vl-8b"), layout_of(""), DECODE, RELEASE))
    assert found["split_qkv_rmsnorm_mrope_kernel 16,6144;128;;128;;3,16,128"] == 36
    assert found["MatMulV2 16,4096;24576,4096"] == 36


def test_qwen3_5_has_linear_attention_in_three_of_four_layers():
    """45 and 15 of 60 layers; 64 heads of values on 16 ranks, and 32 of 512 experts of 1024."""
    layout = layout_of("tp=16,ep=16")
    batch = Batch(Phase.PREFILL, 1, 4096, 4096)
    found = counted(model_step(find_decoder("qwen3.5-397b-a17b"), layout, batch, RELEASE))
    assert found["chunk_local_cumsum_scalar_kernel 1,4096,4;2;4,2"] == 45  # chunks of 1024 tokens
    assert sum(n for name, n in found.items() if name.startswith("FusedInferAttention")) == 15
    experts = "32,4096,2048;32,1024,4096"
    assert found[f"DispatchFFNCombineBF16 256,4096;{experts};256,10;;;256,10"] == 60


def test_linear_attention_takes_the_chunks_of_each_prompt():
    """Sizes of Qwen3-Next's config.json: 36 layers of linear attention, with 16 and 32 heads of
    128 on four ranks. Chunks of 64 tokens; triangles of 1,216 are inverted at once."""
    layout = layout_of("tp=4,ep=4,sequence_split")
    step = model_step(
        find_decoder("qwen3-next-80b-a3b"), layout, Batch(Phase.PREFILL, 2, 3000, 3000), RELEASE
    )
    found = counted(step)
    assert found["chunk_scaled_dot_kkt_fwd_kernel 1,6000,4,128;8,1,6000;8,1,6000;3;94,2"] == 36
    assert found["solve_tril_16x16_kernel 1,6000,8,64;3;6,2"] == 36
    assert sum(n for name, n in found.items() if name.startswith("FusedInferAttention")) == 12
    experts = "128,2048,1024;128,512,2048"  # 128 of 512 experts of 512
    shapes = f"1500,2048;{experts};1500,10;;;1500,10"
    assert found[f"DispatchFFNCombineBF16 {shapes}"] == 48


def test_sparse_attention_has_the_tokens_of_the_first_of_eight_ranks():
    """Its operators accept the row; each request has two numbers that are filled one by one."""
    layout = layout_of("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8")
    found = find_deployment("deepseek-v3.2", RELEASE, layout)
    for batch, ends, keys, fills in (
        (Batch(Phase.DECODE, 13, 1, 999), "1" + ",2" * 15, "999,999" + ",0" * 14, 32),
        (Batch(Phase.PREFILL, 3, 1000, 1000), "375,375,375", "375,0,0", 6),
    ):
        step = deployed_step(found, batch)
        rows = [x.record for x in step.kernels if x.record.kernel_type == "SparseFlashAttention"]
        (row,) = rows
        assert row.extra["Runtime actual_seq_lengths_values"] == ends
        assert row.extra["Runtime actual_seq_lengths_kv_values"] == keys
        find_operator(row.kernel_type).check(row.case, "npu")
        singles = [
            one.times
            for one in step.kernels
            if one.record.kernel_type == "Fill"
            and (one.record.cells["Output Shapes"], one.record.cells["Input Data Types"])
            == ('""', "INT64;INT32")
        ]
        assert singles == [fills]


def test_a_decode_is_padded_to_a_graph_and_only_its_requests_are_sampled():
    qwen = find_decoder("qwen3-32b")
    step = model_step(qwen, layout_of(QWEN), Batch(Phase.DECODE, 5, 1, 300), RELEASE)
    found = counted(step)
    assert found["MatMulV2 16,5120;320,48,16,16"] == 64
    assert found["ArgMaxV2 5,151936;"] == 1
    (attention,) = (x for x in step.kernels if x.record.kernel_type == "FusedInferAttentionScore")
    lengths = attention.record.extra["Runtime actual_seq_lengths_kv_values"]
    assert lengths == ",".join(["300"] * 5 + ["1"] * 11)  # an empty request has one key


def test_prompts_next_to_decodes_have_both_attentions():
    """DeepSeek-V3: absorbed attention of 3 decodes, and attention of a prompt's new and of its
    earlier tokens. A single token that pads to 8 ranks has a mask of its own."""
    deepseek = find_decoder("deepseek-v3")
    layout = layout_of("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8")
    batch = Batch(Phase.PREFILL, 1, 64, 192, mixed_decodes=3, followed_keys=90)
    for release in ("vllm-ascend-0.18", "vllm-ascend-0.23"):
        step = model_step(deepseek, layout, batch, release)
        kernels = Counter()
        for one in step.kernels:
            shapes = one.record.cells.get("Input Shapes", "").strip('"')
            if one.record.kernel_type in ATTENTION:
                kernels[shapes.partition(",")[0]] += one.times  # tokens, or decodes
            if "InterleaveRope" in one.record.kernel_type and shapes.startswith("3,"):
                kernels["rope of decodes"] += one.times
        assert kernels == {"3": 61, "64": 2 * 61, "rope of decodes": 61}, release
        for tokens, times in ((66, 0), (64, 0), (68, 1)):  # 3, 5 and 1 of padding
            one = replace(batch, queries=tokens, keys=tokens + 128)
            found = counted(model_step(deepseek, layout, one, release))
            assert found["TensorMove 1"] == times, (release, tokens)


def test_unrecorded_load_is_refused_with_the_recorded_ones():
    qwen = find_decoder("qwen3-32b")
    refused = [
        (layout_of(QWEN), Batch(Phase.DECODE, 5000, 1, 64), "decode of 1 to 256 tokens"),
        (layout_of(QWEN), Batch(Phase.PREFILL, 2, 64, 128), "chunk of 1 to 992 tokens of one"),
        (layout_of(QWEN), Batch(Phase.PREFILL, 3, 3000, 3000), "prefill of 993 to 8192 tokens"),
    ]
    for layout, one, words in refused:
        with pytest.raises(BadInput) as raised:
            model_step(qwen, layout, one, RELEASE)
        text = str(raised.value)
        assert "\n" not in text
        assert words in text
        assert "opmeter model record qwen3-32b" in text


def test_earlier_tokens_of_latent_attention_are_limited_to_one_part():
    """vLLM-Ascend (attention/utils.py) attends to 131,072 earlier tokens of all prompts at once."""
    deepseek = find_decoder("deepseek-v3")
    layout = layout_of("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8")
    most = Batch(Phase.PREFILL, 1, 512, 512 + (1 << 17))
    step = model_step(deepseek, layout, most, RELEASE)
    rings = [one for one in step.kernels if one.record.kernel_type == "RINGMLAPrefillBF16Kernel"]
    assert sum(one.times for one in rings) == 2 * 61  # the chunk, and what is before it
    assert any("131072,16,128" in one.record.cells["Input Shapes"] for one in rings)
    with pytest.raises(BadInput, match="131072 earlier tokens"):
        model_step(deepseek, layout, replace(most, keys=most.keys + 1), RELEASE)


def test_decodes_that_verify_predicted_tokens_are_recorded():
    """DeepSeek-V3: 5 requests have 10 tokens, in a graph of 16 on 8 ranks, with logits of all 10.
    The layer that predicts is not packaged."""
    deepseek = find_decoder("deepseek-v3")
    layout = layout_of("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8")
    batch = Batch(Phase.DECODE, 5, 2, 300, predicted=1)
    for release in ("vllm-ascend-0.18", "vllm-ascend-0.23"):
        step = model_step(deepseek, layout, batch, release)
        found = counted(step)
        assert found["AddRmsNormBias 2,7168;2,7168;7168;"] == 122, release  # tokens of a rank
        assert found["MatMulV2 10,7168;16160,7168"] == 1, release
        assert sum(n for name, n in found.items() if name.startswith("rejection_")) == 1
        with pytest.raises(BadInput, match="--requests 5 --context 300 --speculative 1"):
            model_step(deepseek, layout, replace(batch, is_draft=True), release)


def test_unrecorded_layouts_and_kinds_of_passes_are_refused_with_the_command_that_records_them():
    chunk = Batch(Phase.PREFILL, 1, 64, 4160)
    verified = Batch(Phase.DECODE, 4, 2, 64, predicted=1)
    llama = "opmeter model record llama-3-70b --release vllm-ascend-0.18 --layout tp=8,dp=1,ep=1"
    for model, layout, batch, command in (
        (
            "qwen3-32b",
            "tp=2,nz=2",
            DECODE,
            "--layout tp=2,dp=1,ep=1 --graph full-decode --env VLLM",
        ),
        (
            "minimax-m2",
            "tp=4,ep=4",
            DECODE,
            "expected vllm-ascend-0.23, with tp=4,dp=1,ep=4,sequence_split",
        ),
        ("llama-3-70b", "tp=8", chunk, f"{llama} --graph full-decode --phase prefill --tokens 64"),
        ("llama-3-70b", "tp=8", chunk, "--prompts 1 --earlier 4096 --output"),
        ("llama-3-70b", "tp=8", verified, "--requests 4 --context 64 --speculative 1 --output"),
    ):
        with pytest.raises(BadInput) as raised:
            model_step(find_decoder(model), layout_of(layout), batch, RELEASE)
        assert command in str(raised.value) and "\n" not in str(raised.value)


def test_latent_attention_in_int8_of_a_host_that_only_decodes_is_refused():
    layout = layout_of("tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8")
    alone = replace(DECODE, decodes_alone=True)
    with pytest.raises(BadInput, match="MLAPO"):
        model_step(find_decoder("deepseek-v3"), layout, alone, RELEASE)
    qwen = find_decoder("qwen3-32b")  # which has the same kernels
    both = [model_step(qwen, layout_of("tp=4"), one, RELEASE) for one in (DECODE, alone)]
    assert both[0] == both[1]


def test_releases_that_can_be_recorded_are_packaged_and_others_are_refused():
    assert packaged_releases() == tuple(sorted(RELEASES))
    with pytest.raises(BadInput, match=r"vllm-ascend-0.13.*cannot be.*vllm-ascend-0.18"):
        model_step(find_decoder("qwen3-32b"), layout_of("tp=4"), DECODE, "vllm-ascend-0.13")


def test_uneven_loads_of_experts_are_the_ends_of_their_rows():
    glm, layout = find_decoder("glm-4.5-air"), layout_of("tp=8,ep=8,sequence_split,experts=apart")
    found = {}
    for percent in (0, 50):
        batch = Batch(Phase.DECODE, 16, 1, 1000, skew=20, imbalance=percent)
        step = model_step(glm, layout, batch, RELEASE)
        of = [one.record for one in step.kernels if one.record.kernel_type == "GroupedMatmul"]
        (ends,) = {one.extra["Runtime group_list_values"] for one in of}
        found[percent] = [int(end) for end in ends.split(",")]
    even, uneven = found[0], found[50]
    assert len(even) == len(uneven) == 16 and even[-1] == uneven[-1] > 0
    assert even[0] > uneven[0] and uneven[-1] - uneven[-2] > even[-1] - even[-2]


def test_prompts_of_one_token_are_refused():
    """The engine replays the graph of decodes for them, without one of the copies of a decode."""
    found = find_deployment("qwen3-32b", RELEASE, layout_of(QWEN))
    next_to_decodes = Batch(Phase.PREFILL, 3, 1, 1, mixed_decodes=2, followed_keys=90)
    for batch in (
        *(Batch(Phase.PREFILL, 3, 1, keys) for keys in (1, 8193)),
        next_to_decodes,
    ):
        with pytest.raises(BadInput):
            deployed_step(found, batch)
