"""The steps of models against step traces of real serving on Atlas A3 (reports of msmodeling, March
2026): Qwen3-32B BF16 tp=16, DeepSeek-V3 W8A8 tp=8 dp=2 ep=16. Those of other models against the
calls of vLLM-Ascend's code with their public sizes."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from collector.codec.errors import BadInput
from collector.model.case import shape_text
from collector.model.record import CaseRecord
from collector.ops.refusals import refusal
from collector.ops.registry import find
from collector.shapes.kernel_set import bundled_releases, find_kernel_set
from collector.shapes.layout import layout_of
from collector.shapes.models import bundled_names, find_decoder, read_config
from collector.shapes.serving import Batch, Phase
from collector.shapes.step import derive_step
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

_QWEN = "tp=16,nz=2,sequence_split"  # as the release does in passes of over 1,000 tokens
_DSV3 = "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8"


def step_of(model, layout, phase, requests, queries, keys, padding=0, release="0.18"):
    batch = Batch(phase, requests, queries, keys, padding)
    kernels = find_kernel_set(f"vllm-ascend-{release}")
    return derive_step(find_decoder(model), layout_of(layout), batch, kernels)


def kernels_of(step):
    """Return `kernel shapes` -> launches; of lists of shapes, those of the present tensors."""
    found = {}
    for one in step.kernels:
        slots = [slot for slot in one.record.case.inputs if slot.shape is not None]
        shapes = ";".join(shape_text(slot.shape) for slot in slots)
        name = f"{one.record.kernel_type} {shapes}"
        found[name] = found.get(name, 0) + one.times
    return found


def messages_of(step):
    found = {}
    for one in step.collectives:
        key = (one.operation, one.message_bytes, one.group_size)
        found[key] = found.get(key, 0) + one.times
    return found


QWEN_DECODE = {
    "MatMulV2 16,5120;320,48,16,16": 64,  # qkv (768,5120): 4 heads, 1 of keys and of values
    "MatMulV2 16,512;32,320,16,16": 64,  # o (5120,512)
    "MatMulV2 16,5120;320,200,16,16": 64,  # gate_up (3200,5120)
    "MatMulV2 16,1600;100,320,16,16": 64,  # down (5120,1600)
    "SwiGlu 16,3200": 64,
    "AddRmsNormBias 16,5120;16,5120;5120": 128,  # two a layer, the last of them after all layers
    "split_qkv_rmsnorm_rope_kernel 16,768;128": 63,  # of 64 layers
    "MatMulV2 16,5120;9496,5120": 1,  # lm_head (9496,5120), not in blocks
    "Sort 16,151936": 1,  # sampling
    "SoftmaxV2 16,151936": 1,
    "ArgMaxV2 16,151936": 1,
}
# The traces have MatMulV3 for large M, which is not derived: the runtime chooses among twins.
QWEN_PREFILL = {  # a prompt of 4,104 tokens, which 16 ranks split
    "MatMulV2 4112,5120;320,48,16,16": 64,
    "MatMulV2 4112,512;32,320,16,16": 64,
    "MatMulV2 4112,5120;320,200,16,16": 64,
    "MatMulV2 4112,1600;100,320,16,16": 64,
    "SwiGlu 4112,3200": 64,
    "AddRmsNormBias 257,5120;257,5120;5120": 128,  # M / tp
    "split_qkv_rmsnorm_rope_kernel 4112,768;128": 63,
}
DSV3_DECODE = {  # 5 requests, which 8 ranks split
    "QuantBatchMatmulV3 1,7168;66,448,16,32;2112;2112": 61,  # q_a and kv_a (2112,7168)
    "QuantBatchMatmulV3 5,1536;96,96,16,32;3072;3072": 61,  # q_b (3072,1536)
    "QuantBatchMatmulV3 8,2048;224,128,16,32;7168;7168": 61,  # o (7168,2048)
    "QuantBatchMatmulV3 8,7168;144,448,16,32;4608;8": 3,  # dense gate_up (4608,7168)
    "QuantBatchMatmulV3 8,2304;224,144,16,32;7168;8": 3,  # dense down (7168,2304)
    "QuantBatchMatmulV3 1,7168;128,448,16,32;4096;1": 58,  # shared gate_up (4096,7168)
    "QuantBatchMatmulV3 1,2048;224,128,16,32;7168;1": 58,  # shared down (7168,2048)
    "MatMulV2 1,7168;256,7168": 58,  # router (256,7168)
    "MatMulV2 5,7168;16160,7168": 1,  # lm_head (16160,7168)
    "AscendQuantV2 1,7168;7168;7168": 61,  # before each product of attention
    "AscendQuantV2 5,1536;1536;1536": 61,
    "AscendQuantV2 8,2048;2048;2048": 61,
    "BatchMatMulV2 16,5,128;16,128,512": 61,  # absorbed keys
    "TransposeBatchMatMul 16,5,512;16,512,128": 61,  # absorbed values
    "InterleaveRope 5,16,1,64;5,1,1,64;5,1,1,64": 61,
    "KvRmsNormRopeCache 5,1,1,576;512;5,1,1,64;5,1,1,64;5;165,128,1,64;165,128,1,512": 61,
    "MoeGatingTopK 1,256;256": 58,
    "DispatchFFNCombine 1,7168;16,7168,4096;16,2048,7168;1,8;65536;114688;1,8": 58,
}
DSV3_PREFILL = {
    "QuantBatchMatmulV3 256,7168;66,448,16,32;2112;2112": 61,  # 40.3 us there
    "QuantBatchMatmulV3 2048,1536;96,96,16,32;3072;3072": 61,
    "QuantBatchMatmulV3 2048,2048;224,128,16,32;7168;7168": 61,
    "QuantBatchMatmulV3 256,7168;128,448,16,32;4096;256": 58,
    "QuantBatchMatmulV3 256,2048;224,128,16,32;7168;256": 58,  # shared down
    "QuantBatchMatmulV3 2048,7168;144,448,16,32;4608;2048": 3,
    "QuantBatchMatmulV3 2048,2304;224,144,16,32;7168;2048": 3,  # dense down
    "MatMulV2 2048,512;4096,512": 61,  # kv_b (4096,512)
    "MoeGatingTopK 256,256;256": 58,
}


# DeepSeek-V3.2, 64 tokens, of which each of 8 ranks attends from 8 with all heads.
DSV32_DECODE = {
    "QuantBatchMatmulV3 8,7168;66,448,16,32;2112;2112": 61,  # q_a and kv_a, of split tokens
    "MatMulV2 8,7168;128,7168": 61,  # the indexer's keys
    "LayerNormV3 8,128;128;128": 61,  # in FLOAT
    "_triton_rope_siso 8,1,128;8,64;8,64": 61,
    "ConcatD 8,64;8,512;8,128": 61,  # the keys that ranks gather of each other
    "QuantBatchMatmulV3 8,1536;768,96,16,32;24576;24576": 61,  # q_b of all 128 heads
    "BatchMatMulV2 128,8,128;128,128,512": 61,  # absorbed keys
    "InterleaveRope 8,128,1,64;8,1,1,64;8,1,1,64": 61,
    "ReshapeAndCacheNdKernel 64,1,512;64,1,64;2112,128,1,512;2112,128,1,64;64": 61,
    "ScatterNdUpdate 270336,128;64,1;64,128": 61,  # the indexer's own cache
    "MatMulV2 8,7168;64,7168": 61,  # weights of the indexer's heads
    "QuantBatchMatmulV3 8,1536;256,96,16,32;8192;8192": 61,  # its queries: 64 heads of 128
    "_triton_rope_siso 8,64,128;8,64;8,64": 61,
    "LightningIndexerVllm 8,64,128;2112,128,1,128;8,64;8;8;8,33": 61,
    "SparseFlashAttention 8,128,512;2112,128,1,512;2112,128,1,512;8,1,2048;8,33;8;8;8,128,64;"
    "2112,128,1,64": 61,
    "batch_matmul_transpose_0 8,128,512;128,512,128": 61,  # absorbed values
    "QuantBatchMatmulV3 64,2048;224,128,16,32;7168;7168": 61,  # o of 16 heads, all tokens
}
# GLM-5.1 alone on its ranks: one kernel before attention, and CANN's own indexer of 32 heads.
GLM51_DECODE = {
    "mla_preprocess_0_mix_aic 4,6144;1,192,2624,32;2624;2048;2048;1,64,16384,32;16384;512;4,64;"
    "4,64;64,192,512;132,128,1,512;132,128,1,64;4;1;1;2624;1;1;16384;1;1": 78,
    "LightningIndexer 4,32,128;132,128,1,128;4,32;4;4;4,33": 78,
    "SparseFlashAttention 4,64,512;132,128,1,512;132,128,1,512;4,1,2048;4,33;4;4;4,64,64;"
    "132,128,1,64": 78,
    "batch_matmul_transpose_0 4,64,512;64,512,256": 78,  # values of 256
    "QuantBatchMatmulV3 4,16384;192,1024,16,32;6144;6144": 78,  # o
    "MoeGatingTopK 4,256;256": 75,
    "DispatchFFNCombine 4,6144;8,6144,4096;8,2048,6144;4,8;32768;49152;4,8": 75,
}
# GLM-4.5: heads that are normalised and half rotated after a bias, and a router in FLOAT.
GLM45_DECODE = {
    "MatMulV2 8,5120;320,112,16,16;1792": 92,  # qkv (1792,5120) with a bias
    "split_qkv_rmsnorm_rope_kernel 8,1792;64": 91,
    "RmsNorm 8,12,128;128": 1,  # the first layer's
    "_triton_rope 8,12,128;8,1,128;2048,64": 1,
    "MatMulV2 8,1536;96,320,16,16": 92 + 3,  # o has none; down of dense layers is as large
    "Cast 1,5120": 89,  # the router's tokens
    "MatMulV2 1,5120;160,5120": 89,
    "MoeGatingTopK 1,160;160": 89,
    "MatMulV2 1,5120;320,192,16,16": 89,  # the shared expert's gate_up (3072,5120)
}


@pytest.mark.parametrize(
    ("step", "seen"),
    [
        (("deepseek-v3.2", _DSV3, Phase.DECODE, 64, 1, 4100), DSV32_DECODE),
        (
            ("glm-5.1", "dp=32,ep=32,quantisation=w8a8", Phase.DECODE, 4, 1, 4100),
            GLM51_DECODE,
        ),
        (
            (
                *("glm-4.5", "tp=8,ep=8,sequence_split,experts=apart,nz=2"),
                *(Phase.DECODE, 8, 1, 4096),
            ),
            GLM45_DECODE,
        ),
        (("qwen3-32b", _QWEN, Phase.DECODE, 16, 1, 4096), QWEN_DECODE),
        (("qwen3-32b", _QWEN, Phase.PREFILL, 1, 4104, 4104), QWEN_PREFILL),
        (("deepseek-v3", _DSV3, Phase.DECODE, 5, 1, 4100), DSV3_DECODE),
        (("deepseek-v3", _DSV3, Phase.PREFILL, 1, 2048, 2048), DSV3_PREFILL),
    ],
)
def test_step_has_the_kernels_of_real_serving_or_of_the_code(step, seen):
    found = kernels_of(step_of(*step))
    assert {name: found.get(name, 0) for name in seen} == seen


def test_decode_attention_reads_pages_and_has_the_queries_of_its_heads():
    (dense,) = _attention(step_of("qwen3-32b", _QWEN, Phase.DECODE, 16, 1, 4097))
    assert dense.case.inputs[0].shape == (16, 4, 128)
    assert dense.case.inputs[14].shape == (16, 33)  # pages of 128 tokens for each request
    assert dense.extra["Runtime actual_seq_lengths_kv_values"] == ",".join(["4097"] * 16)
    (latent,) = _attention(step_of("deepseek-v3", _DSV3, Phase.DECODE, 5, 1, 4100))
    assert latent.case.inputs[0].shape == (5, 16, 1, 512)
    assert latent.case.inputs[24].shape == (5, 16, 1, 64)


def test_graph_padding_attends_to_one_key_and_is_not_sampled():
    step = step_of("qwen3-32b", _QWEN, Phase.DECODE, 16, 1, 4097, padding=3)
    found = kernels_of(step)
    assert found["MatMulV2 16,5120;320,48,16,16"] == 64
    assert found["MatMulV2 13,5120;9496,5120"] == found["Sort 13,151936"] == 1
    assert messages_of(step)[("all_gather", 13 * 9496 * 2, 16)] == 1
    (attention,) = _attention(step)
    lengths = attention.extra["Runtime actual_seq_lengths_kv_values"].split(",")
    assert lengths == ["4097"] * 13 + ["1"] * 3


def _attention(step):
    return [
        one.record for one in step.kernels if one.record.kernel_type == "FusedInferAttentionScore"
    ]


def test_messages_of_a_step_are_those_of_real_serving():
    decode = messages_of(step_of("qwen3-32b", _QWEN, Phase.DECODE, 16, 1, 4096))
    assert decode == {
        ("all_reduce", 163_840, 16): 129,  # two a layer and the embedding's
        ("all_gather", 303_872, 16): 1,  # logits
    }
    prefill = messages_of(step_of("qwen3-32b", _QWEN, Phase.PREFILL, 1, 4104, 4104))
    assert prefill[("reduce_scatter", 257 * 5120 * 2, 16)] == 129
    assert prefill[("all_gather", 257 * 5120 * 2, 16)] == 129
    latent = messages_of(step_of("deepseek-v3", _DSV3, Phase.PREFILL, 1, 2048, 2048))
    sizes = {message for _, message, _ in latent}
    assert {786_432, 294_912, 3_670_016, 32_320} == sizes  # of 8 dies, all four
    small = messages_of(step_of("deepseek-v3", _DSV3, Phase.DECODE, 4, 1, 4096))
    assert {3_072, 1_152, 14_336, 129_280} == {message for _, message, _ in small}


def test_ranks_of_sparse_attention_gather_keys_and_send_results_of_heads():
    decode = messages_of(step_of("deepseek-v3.2", _DSV3, Phase.DECODE, 64, 1, 4100))
    keys, heads = 2 * 8 * (64 + 512 + 128), 2 * 8 * 128 * 128
    assert decode[("all_gather", keys, 8)] == decode[("all_to_all_single", heads, 8)] == 61
    prefill = messages_of(step_of("deepseek-v3.2", _DSV3, Phase.PREFILL, 1, 2048, 2048))
    assert prefill[("all_gather", 16 * 128 * 7168, 8)] == 61  # the part of o of the others, in INT8
    assert not any(name.startswith("all_to_all") for name, _, _ in prefill)


def test_a_part_of_sparse_attention_sees_the_keys_up_to_its_last_token():
    step = step_of("deepseek-v3.2", _DSV3, Phase.PREFILL, 3, 100, 100)  # 38 tokens a rank
    (row,) = (k.record for k in step.kernels if k.record.kernel_type == "SparseFlashAttention")
    # Of ranks with a full part the last one, the seventh, has tokens 228 to 265 of 300.
    assert row.extra["Runtime actual_seq_lengths_values"] == "38"
    assert row.extra["Runtime actual_seq_lengths_kv_values"] == "66"
    assert row.case.inputs[0].shape == (38, 128, 512)


def test_answers_and_prompts_of_one_pass_attend_together_or_separately():
    batch = Batch(Phase.PREFILL, 2, 512, 512, mixed_decodes=6, followed_keys=3000)
    release = find_kernel_set("vllm-ascend-0.18")
    dense = derive_step(find_decoder("qwen3-32b"), layout_of("tp=8"), batch, release)
    (one,) = _attention(dense)
    assert one.case.inputs[0].shape == (1030, 8, 128)
    assert one.extra["Runtime actual_seq_lengths_kv_values"] == ",".join(["3000"] * 6 + ["512"] * 2)
    latent = derive_step(find_decoder("deepseek-v3"), layout_of(_DSV3), batch, release)
    answers, prompts = _attention(latent)
    assert answers.case.inputs[0].shape == (6, 16, 1, 512)
    assert prompts.case.inputs[0].shape == (1024, 16, 128)
    assert kernels_of(latent)["MatMulV2 8,7168;16160,7168"] == 1  # a token of each is sampled


def test_chunk_with_latent_attention_reads_and_joins_the_earlier_keys():
    found = kernels_of(step_of("deepseek-v3", _DSV3, Phase.PREFILL, 2, 512, 2048))
    past = 2 * (2048 - 512)
    expected = (
        f"PagedCacheLoadNdKernel 32,128,1,512;32,128,1,64;2,16;2;{past},1,512;{past},1,64;2",
        f"MatMulV2 {past},512;4096,512",  # kv_b
        f"FusedInferAttentionScore 1024,16,128;{past},16,128;{past},16,128;2;2;1024,16,64;"
        f"{past},16,64",
        "AttentionUpdate 16384;16384;16384,128;16384,128",
    )
    assert {name: found.get(name) for name in expected} == dict.fromkeys(expected, 61)


def test_ranks_without_a_token_split_share_the_shared_expert():
    layout = "tp=8,dp=2,ep=16,quantisation=w8a8"
    step = step_of("deepseek-v3", layout, Phase.DECODE, 16, 1, 4096)
    found = kernels_of(step)
    assert found["QuantBatchMatmulV3 16,7168;16,448,16,32;512;16"] == 58  # gate_up (512,7168)
    assert found["QuantBatchMatmulV3 16,256;224,16,16,32;7168;16"] == 58  # down (7168,256)
    assert found["DispatchFFNCombine 2,7168;16,7168,4096;16,2048,7168;2,8;65536;114688;2,8"] == 58
    messages = messages_of(step)
    assert messages[("all_gather", 2 * 2 * 7168, 8)] == 58  # the results of each rank's part
    assert messages[("all_reduce", 2 * 16 * 7168, 8)] == 61 + 3 + 58 + 1


def test_prompts_of_an_older_release_use_ring_attention_in_rounds():
    found = kernels_of(step_of("deepseek-v3", _DSV3, Phase.PREFILL, 1, 512, 2048, release="0.13"))
    heads = "512,16,128;512,16,64"
    first = f"RINGMLAPrefillBF16Kernel {heads};{heads};512,16,128;512,512"
    past = "1536,16,128;1536,16,64;1536,16,128"
    later = f"RINGMLAPrefillBF16Kernel {heads};{past};512,512;512,16,128;16,512"
    assert found[first] == found[later] == 61
    assert not any(name.startswith(("FusedInfer", "AttentionUpdate")) for name in found)


def test_predicted_tokens_are_verified_in_one_pass_and_drafted_by_one_layer():
    seen = Batch(Phase.DECODE, 4, 2, 4097, predicted=1)
    release = find_kernel_set("vllm-ascend-0.18")
    model = derive_step(find_decoder("deepseek-v3"), layout_of(_DSV3), seen, release)
    (attention,) = _attention(model)
    assert attention.case.inputs[0].shape == (8, 16, 512)
    assert attention.extra["Runtime actual_seq_lengths_values"] == "2,4,6,8"
    assert kernels_of(model)["MatMulV2 8,7168;16160,7168"] == 1  # all eight are sampled
    draft = replace(seen, is_draft=True)
    step = derive_step(find_decoder("deepseek-v3"), layout_of(_DSV3), draft, release)
    found = kernels_of(step)
    expected = {
        "ConcatD 1,7168;1,7168": 1,
        "MatMulV2 1,14336;7168,14336": 1,  # of both to one
        "RmsNorm 1,7168;7168": 2 + 1 + 1,  # of both, the first and the last
        "AddRmsNormBias 1,7168;1,7168;7168": 1,
        "MoeDistributeDispatchV2 1,7168;1,8;1": 1,  # its experts are not fused
        "QuantBatchMatmulV3 1,7168;66,448,16,32;2112;2112": 1,
        "MatMulV2 4,7168;16160,7168": 1,  # one token of each request continues
        "ArgMaxV2 4,129280": 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    with pytest.raises(BadInput, match=naming("qwen3-32b", "layer")):
        derive_step(find_decoder("qwen3-32b"), layout_of(""), seen, release)


# Qwen3-32B in INT8, with a prompt split over 8 ranks: the norm before qkv is quantised with it.
QWEN_INT8_PREFILL = {
    "RmsNorm 257,5120;5120": 1,  # the first layer's, which adds nothing
    "AscendQuantV2 2056,5120;5120;5120": 1,
    "AddRmsNormQuant 257,5120;257,5120;5120;5120;5120": 63,
    "AddRmsNormBias 257,5120;257,5120;5120": 64 + 1,  # before the feed-forward, and after all
    "QuantBatchMatmulV3 2056,5120;40,320,16,32;1280;1280": 64,  # qkv (1280,5120)
    "AscendQuantV2 2056,1024;1024;1024": 64,  # before o
    "DynamicQuant 2056,5120": 64,  # before gate_up
}


def test_int8_norm_is_fused_with_its_quantisation_and_gathered():
    split = "tp=8,sequence_split,quantisation=w8a8"
    step = step_of("qwen3-32b", split, Phase.PREFILL, 1, 2056, 2056)
    found = kernels_of(step)
    assert {name: found.get(name) for name in QWEN_INT8_PREFILL} == QWEN_INT8_PREFILL
    gathered = messages_of(step)
    assert gathered[("all_gather", 257 * 5120, 8)] == 63  # before qkv
    assert gathered[("all_gather", 2 * 257 * 5120, 8)] == 1 + 64 + 1  # first, feed-forward, output
    older = kernels_of(step_of("qwen3-32b", split, Phase.PREFILL, 1, 2056, 2056, release="0.13"))
    assert older["AscendQuantV2 2056,5120;5120;5120"] == 64
    assert older["AddRmsNormBias 257,5120;257,5120;5120"] == 128


# DeepSeek-V3.2 in 0.13, unlike 0.18: one rotation, and the indexer's cache twice.
DSV32_IN_0_13 = {
    "_triton_rope 8,64,128;8,1,128;2048,64": 61,
    "LightningIndexer 8,64,128;2112,128,1,128;8,64;8;8;8,33": 61,
    "ScatterNdUpdate 270336,128;64,1;64,128": 2 * 61,
    "ScatterNdUpdate 270336,512;64,1;64,512": 61,
    "ScatterNdUpdate 270336,64;64,1;64,64": 61,
    "_triton_rope_siso 8,1,128;8,64;8,64": 0,
}


def test_sparse_attention_of_an_older_release_writes_its_caches_by_scatters():
    step = step_of("deepseek-v3.2", _DSV3, Phase.DECODE, 64, 1, 4100, release="0.13")
    found = kernels_of(step)
    assert {name: found.get(name, 0) for name in DSV32_IN_0_13} == DSV32_IN_0_13


# DeepSeek-V3 on a decode-only host: one kernel from gathered tokens to both caches.
DSV3_DECODES_ALONE = {
    "mla_preprocess_0_mix_aic 16,7168;1,224,2112,32;2112;1536;1536;1,48,3072,32;3072;512;16,64;"
    "16,64;16,128,512;528,128,1,512;528,128,1,64;16;1;1;2112;1;1;3072;1;1": 61,
    "FusedInferAttentionScore 16,16,1,512;528,1,128,512;528,1,128,512;16;16,33;16,16,1,64;"
    "528,1,128,64": 61,
    "TransposeBatchMatMul 16,16,512;16,512,128": 61,
    "AscendQuantV2 16,2048;2048;2048": 61,  # before o, and in no other position
}


def test_decode_only_host_has_one_kernel_before_latent_attention():
    batch = Batch(Phase.DECODE, 16, 1, 4100, decodes_alone=True)
    decoder, layout = find_decoder("deepseek-v3"), layout_of(_DSV3)
    step = derive_step(decoder, layout, batch, find_kernel_set("vllm-ascend-0.18"))
    found = kernels_of(step)
    assert {name: found.get(name) for name in DSV3_DECODES_ALONE} == DSV3_DECODES_ALONE
    absent = ("BatchMatMulV2", "InterleaveRope", "KvRmsNormRopeCache")
    assert not any(name.startswith(absent) for name in found)
    assert [name for name in found if name.startswith("AscendQuantV2")] == [
        "AscendQuantV2 16,2048;2048;2048"
    ]
    messages = messages_of(step)
    assert messages[("all_gather", 2 * 2 * 7168, 8)] == 61 + 3 + 1  # tokens, not their latents
    unrequested = derive_step(decoder, layout, batch, find_kernel_set("vllm-ascend-0.13"))
    assert kernels_of(unrequested)["AscendQuantV2 2,7168;7168;7168"] == 61


def test_later_draft_token_uses_the_padding_of_all_verified_ones():
    release, decoder = find_kernel_set("vllm-ascend-0.18"), find_decoder("deepseek-v3")
    # Four requests with two predicted tokens: twelve tokens, eight of them of empty requests.
    later = Batch(Phase.DECODE, 12, 1, 4099, padding=8, predicted=2, is_draft=True)
    (attention,) = _attention(derive_step(decoder, layout_of(_DSV3), later, release))
    assert attention.case.inputs[0].shape == (12, 16, 512)
    lengths = attention.extra["Runtime actual_seq_lengths_kv_values"]
    assert lengths == ",".join(["4099"] * 4 + ["1"] * 8)
    # After a prompt of 4,096 its one next token attends, and all of them pass the layer.
    behind = Batch(Phase.DECODE, 1, 1, 4097, predicted=2, is_draft=True, idle=4095)
    step = derive_step(decoder, layout_of(_DSV3), behind, release)
    found = kernels_of(step)
    assert _attention(step)[0].case.inputs[0].shape == (1, 16, 512)
    assert found["QuantBatchMatmulV3 512,7168;66,448,16,32;2112;2112"] == 1  # q_a and kv_a: 4096/8
    assert found["QuantBatchMatmulV3 4096,2048;224,128,16,32;7168;7168"] == 1  # o
    assert found["MatMulV2 1,7168;16160,7168"] == 1  # one is sampled


def test_even_older_release_adds_no_bias_and_dispatches_its_experts():
    layout = "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8,experts=apart"
    found = kernels_of(step_of("deepseek-v3", layout, Phase.DECODE, 8, 1, 4096, release="0.11"))
    assert found["AddRmsNorm 1,7168;1,7168;7168"] == 122
    assert found["batch_matmul_transpose_0 8,16,512;16,512,128"] == 61
    with pytest.raises(BadInput, match=naming("deepseek-v3", "vllm-ascend-0.11", "experts")):
        step_of("deepseek-v3", _DSV3, Phase.DECODE, 8, 1, 4096, release="0.11")


def test_later_release_selects_keys_in_few_layers_for_all():
    layout = "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8"
    found = kernels_of(step_of("glm-5.2", layout, Phase.DECODE, 16, 1, 4096, release="0.23"))
    # all tokens, and the 8 heads of a rank
    assert found["LightningIndexer 16,32,128;512,128,1,128;16,32;16;16;16,32"] == 21
    pools = "512,128,1,512;512,128,1,512"
    attention = f"SparseFlashAttention 16,8,512;{pools};16,1,2048;16,32;16;16;16,8,64;512,128,1,64"
    assert found[attention] == 78
    assert found["MatMulV2 16,6144;160,6144"] == 2 * 21  # keys and weights of heads, twice
    assert found["TensorMove 16,2048"] == 21


def test_uneven_lengths_and_loads_are_in_the_columns_of_a_row():
    batch = Batch(Phase.DECODE, 5, 1, 1000, skew=50, imbalance=50)
    layout = layout_of("tp=1,dp=16,ep=16,quantisation=w8a8,experts=apart")
    release = find_kernel_set("vllm-ascend-0.18")
    step = derive_step(find_decoder("deepseek-v3"), layout, batch, release)
    (attention,) = _attention(step)
    lengths = attention.extra["Runtime actual_seq_lengths_kv_values"]
    assert lengths == "500,750,1000,1250,1500"
    assert attention.case.inputs[14].shape == (5, 12)  # pages for the longest
    experts = next(k.record for k in step.kernels if k.record.kernel_type == "GroupedMatmul")
    ends = [int(end) for end in experts.extra["Runtime group_list_values"].split(",")]
    loads = [end - start for start, end in pairwise([0, *ends])]
    assert len(loads) == 16 and ends[-1] == 5 * 8
    assert loads[0] < loads[-1] and sum(loads[:8]) < sum(loads[8:])


def test_experts_of_four_bits_are_multiplied_by_groups_of_256_rows():
    layout = "tp=8,dp=2,ep=16,sequence_split,quantisation=w4a8,experts=apart"
    found = kernels_of(step_of("deepseek-v3", layout, Phase.PREFILL, 1, 2048, 2048))
    rows = 256 * 8
    gate_up = f"GroupedMatmul {rows},7168;16,64,448,16,64;16,4096;16,28,4096;16;{rows}"
    down = f"GroupedMatmul {rows},2048;16,112,128,16,64;16,7168;16,8,7168;16;{rows}"
    assert found[gate_up] == found[down] == found[f"DynamicQuant {rows},2048"] == 58
    assert found["QuantBatchMatmulV3 256,7168;128,448,16,32;4096;256"] == 58  # shared: INT8


def test_experts_with_plain_attention_have_no_dense_layer_and_no_bias():
    layout = "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8"
    found = kernels_of(step_of("qwen3-235b-a22b", layout, Phase.DECODE, 8, 1, 4096))
    assert found["MoeGatingTopK 2,128"] == 94
    assert found["DispatchFFNCombine 2,4096;8,4096,3072;8,1536,4096;2,8;24576;32768;2,8"] == 94
    # qkv (2304,4096): 16 heads of queries, and one of keys and of values
    assert found["QuantBatchMatmulV3 8,4096;72,256,16,32;2304;2304"] == 94
    assert not any(name.startswith("SwiGlu") for name in found)


def test_separate_experts_of_a_large_pass_use_all_to_all():
    layout = "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8,experts=apart"
    step = step_of("qwen3-235b-a22b", layout, Phase.PREFILL, 1, 2048, 2048)
    found = kernels_of(step)
    # 512 tokens a rank, each to 8 experts: 4,096 rows are sent, and as many received
    expected = (
        *("MoeTokenPermute 512,4096;512,8", "DynamicQuant 4096,4096"),
        *("MoeTokenPermute 4096,1;4096", "MoeTokenPermute 4096,4096;4096"),
        "GroupedMatmulSwigluQuant 4096,4096;8,96,256,16,32;8,3072;4096;8",
        "GroupedMatmul 4096,1536;8,128,96,16,32;8,4096;8;4096",
        *("MoeTokenUnpermute 4096,4096;4096", "MoeTokenUnpermute 4096,4096;4096;512,8"),
    )
    assert {name: found.get(name) for name in expected} == dict.fromkeys(expected, 94)
    assert not any("Distribute" in name for name in found)
    rows = 4096
    assert {key: times for key, times in messages_of(step).items() if key[0] == "all_to_all"} == {
        ("all_to_all", 4 * rows, 16): 94,  # scales
        ("all_to_all", rows * 4096, 16): 94,  # INT8
        ("all_to_all", 2 * rows * 4096, 16): 94,  # and back
    }


DENSE = ("tp=1", "tp=4,nz=2", "tp=16,sequence_split", "tp=8,quantisation=w8a8")
MIXTURE = (
    "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8",
    "tp=1,dp=32,ep=32,quantisation=w8a8",
    "tp=4,dp=2,ep=8,quantisation=w8a8,nz=2",
    "tp=4,dp=4,ep=16,sequence_split,quantisation=w4a8,experts=apart",
    "tp=2,dp=4,ep=8,experts=apart",
)


@pytest.mark.thorough
@pytest.mark.parametrize("release", bundled_releases())
@pytest.mark.parametrize("model", bundled_names())
def test_operators_accept_every_case_of_a_bundled_model(model, release):
    decoder, kernels = find_decoder(model), find_kernel_set(release)
    reported, wrong = cases_of(decoder, MIXTURE if decoder.is_moe else DENSE, kernels)
    assert not wrong
    assert (reported > 0) == (model not in UNTOLD.get(release, ()))


CONFIGS = {  # of families without a bundled model, as in their models
    "Qwen2.5-72B": ("qwen2", 80, 8192, 29568, 64, 8, 152064, {}),
    "Qwen1.5-MoE-A2.7B": (
        *("qwen2_moe", 24, 2048, 5632, 16, 16, 151936),
        {
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "Phi-3-medium": ("phi3", 40, 5120, 17920, 40, 10, 32064, {}),
    "a llama with biases": ("llama", 32, 4096, 14336, 32, 8, 128256, {"attention_bias": True}),
}
_KEYS = (
    *("model_type", "num_hidden_layers", "hidden_size", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONFIGS)
def test_operators_accept_every_case_of_a_config(name):
    *sizes, more = CONFIGS[name]
    text = json.dumps(dict(zip(_KEYS, sizes, strict=True)) | more)
    decoder = read_config(text.encode(), name=name, path="config.json")
    mixture = ("dp=4,ep=4,quantisation=w8a8,experts=apart", "tp=2,dp=2,ep=4,experts=apart")
    layouts = mixture if decoder.is_moe else ("tp=1", "tp=2,nz=2", "tp=2,quantisation=w8a8")
    reported, wrong = cases_of(decoder, layouts, find_kernel_set("vllm-ascend-0.18"))
    assert not wrong and reported


def cases_of(decoder, layouts, kernels):
    """Return the number of passes, and the cases that no operator accepts."""
    batches = [
        *(Batch(Phase.DECODE, requests, 1, keys) for requests in (1, 7, 64) for keys in (2, 4097)),
        Batch(Phase.DECODE, 8, 1, 4097, padding=3),
        *(Batch(Phase.PREFILL, requests, 1031, 1031) for requests in (1, 3)),
        Batch(Phase.PREFILL, 1, 512, 2048),  # a chunk of a longer prompt
        Batch(Phase.PREFILL, 2, 300, 900, mixed_decodes=5, followed_keys=4000),  # next to answers
        *(Batch(Phase.DECODE, 6, 2, 4000, 1, predicted=1, is_draft=draft) for draft in (0, 1)),
        Batch(Phase.DECODE, 6, 3, 4000, predicted=2),
        Batch(Phase.DECODE, 18, 1, 4000, padding=12, predicted=2, is_draft=True),
        Batch(Phase.DECODE, 2, 1, 1200, predicted=2, is_draft=True, idle=2060),
        Batch(Phase.DECODE, 6, 1, 4000, decodes_alone=True),
        Batch(Phase.DECODE, 9, 1, 3000, padding=2, skew=60, imbalance=90),
        Batch(
            Phase.PREFILL, 1, 600, 600, mixed_decodes=4, followed_keys=900, skew=99, imbalance=30
        ),
    ]
    wrong, reported = set(), 0
    for layout in layouts:
        if decoder.is_quantised and "quantisation" not in layout:
            continue
        for batch in batches:
            try:
                step = derive_step(decoder, layout_of(layout), batch, kernels)
            except BadInput as error:
                unknown = any(one.launch in str(error) for one in kernels.unknown)
                assert unknown or (batch.predicted and not decoder.predictors)
                continue
            reported += 1
            assert step.kernels
            for one in step.kernels:
                if refused := refusal_of(one.record):
                    wrong.add((layout, str(batch), one.layer, refused.reason))
    return reported, wrong


def refusal_of(record):
    return _refusal_of(record.kernel_type, tuple(record.cells.items()), tuple(record.extra.items()))


@cache
def _refusal_of(kernel_type, cells, extra):
    """Most cases recur in other passes, layouts, releases and models."""
    return refusal(CaseRecord(kernel_type, dict(cells), dict(extra)).case, find, "npu")


UNTOLD = {  # models for which the set of a release is incomplete, in every layout
    "vllm-ascend-0.18": ("glm-5.2",),
    "vllm-ascend-0.13": ("glm-4.5", "glm-4.5-air", "glm-5.1", "glm-5.2"),
    "vllm-ascend-0.11": {*bundled_names()} - {"deepseek-v3", "kimi-k2", "kimi-k2-thinking"},
}
