"""The steps of models against what was seen in step traces of real serving on Atlas A3 (reports of
msmodeling, March 2026): Qwen3-32B BF16 tp=16, DeepSeek-V3 W8A8 tp=8 dp=2 ep=16."""

from dataclasses import replace

import pytest

from collector.case import shape_text
from collector.ops.refusals import refusal
from collector.ops.registry import find
from collector.shapes.decoder import bundled_names, find_decoder
from collector.shapes.kernel_set import bundled_releases, find_kernel_set
from collector.shapes.layout import Batch, Phase, layout_of
from collector.shapes.step import derive_step

pytestmark = pytest.mark.fast

_QWEN = "tp=16,nz=2,sequence_split"  # which the release does in passes of over 1,000 tokens
_DSV3 = "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8"


def step_of(model, layout, phase, requests, queries, keys, padding=0):
    batch = Batch(phase, requests, queries, keys, padding)
    release = find_kernel_set("vllm-ascend-0.18")
    return derive_step(find_decoder(model), layout_of(layout), batch, release)


def kernels_of(step):
    """`kernel shapes` -> launches; of lists of shapes, those of the tensors that are there."""
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
    "AddRmsNormBias 16,5120;16,5120;5120": 128,  # two a layer, the last of them behind all layers
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
    "MoeGatingTopK 1,256;256": 58,
    "DispatchFFNCombine 1,7168;16,7168,4096;16,2048,7168;1,8;65536;114688;1,8": 58,
}
DSV3_PREFILL = {
    "QuantBatchMatmulV3 256,7168;66,448,16,32;2112;2112": 61,  # 40.3 us there
    "QuantBatchMatmulV3 2048,1536;96,96,16,32;3072;3072": 61,
    "QuantBatchMatmulV3 2048,2048;224,128,16,32;7168;7168": 61,
    "QuantBatchMatmulV3 256,7168;128,448,16,32;4096;256": 58,
    "QuantBatchMatmulV3 2048,7168;144,448,16,32;4608;2048": 3,
    "MatMulV2 2048,512;4096,512": 61,  # kv_b (4096,512)
    "MoeGatingTopK 256,256;256": 58,
}


@pytest.mark.parametrize(
    ("step", "seen"),
    [
        (("qwen3-32b", _QWEN, Phase.DECODE, 16, 1, 4096), QWEN_DECODE),
        (("qwen3-32b", _QWEN, Phase.PREFILL, 1, 4104, 4104), QWEN_PREFILL),
        (("deepseek-v3", _DSV3, Phase.DECODE, 5, 1, 4100), DSV3_DECODE),
        (("deepseek-v3", _DSV3, Phase.PREFILL, 1, 2048, 2048), DSV3_PREFILL),
    ],
)
def test_a_step_launches_what_was_seen_in_real_serving(step, seen):
    found = kernels_of(step_of(*step))
    assert {name: found.get(name) for name in seen} == seen


def test_attention_of_a_decode_reads_pages_and_keeps_the_queries_of_its_heads():
    (dense,) = _attention(step_of("qwen3-32b", _QWEN, Phase.DECODE, 16, 1, 4097))
    assert dense.case.inputs[0].shape == (16, 4, 128)
    assert dense.case.inputs[14].shape == (16, 33)  # pages of 128 tokens for each request
    assert dense.extra["Runtime actual_seq_lengths_kv_values"] == ",".join(["4097"] * 16)
    (latent,) = _attention(step_of("deepseek-v3", _DSV3, Phase.DECODE, 5, 1, 4100))
    assert latent.case.inputs[0].shape == (5, 16, 1, 512)
    assert latent.case.inputs[24].shape == (5, 16, 1, 64)


def test_a_graphs_padding_attends_to_one_key_and_is_not_sampled():
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


def test_the_messages_of_a_step_are_those_of_real_serving():
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


def test_experts_behind_plain_attention_have_no_dense_layer_and_no_bias():
    layout = "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8"
    found = kernels_of(step_of("qwen3-235b-a22b", layout, Phase.DECODE, 8, 1, 4096))
    assert found["MoeGatingTopK 2,128"] == 94
    assert found["DispatchFFNCombine 2,4096;8,4096,3072;8,1536,4096;2,8;24576;32768;2,8"] == 94
    # qkv (2304,4096): 16 heads of queries, and one of keys and of values
    assert found["QuantBatchMatmulV3 8,4096;72,256,16,32;2304;2304"] == 94
    assert not any(name.startswith("SwiGlu") for name in found)


def test_experts_apart_of_a_large_pass_are_sent_by_all_to_alls():
    layout = "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8,experts=apart"
    step = step_of("qwen3-235b-a22b", layout, Phase.PREFILL, 1, 2048, 2048)
    found = kernels_of(step)
    # 512 tokens a rank, each to 8 experts: 4,096 rows go, and as many come
    wanted = (
        *("MoeTokenPermute 512,4096;512,8", "DynamicQuant 4096,4096"),
        *("MoeTokenPermute 4096,1;4096", "MoeTokenPermute 4096,4096;4096"),
        "GroupedMatmulSwigluQuant 4096,4096;8,96,256,16,32;8,3072;4096;8",
        "GroupedMatmul 4096,1536;8,128,96,16,32;8,4096;8;4096",
        *("MoeTokenUnpermute 4096,4096;4096", "MoeTokenUnpermute 4096,4096;4096;512,8"),
    )
    assert {name: found.get(name) for name in wanted} == dict.fromkeys(wanted, 94)
    assert not any("Distribute" in name for name in found)
    rows = 4096
    assert {key: times for key, times in messages_of(step).items() if key[0] == "all_to_allv"} == {
        ("all_to_allv", 4 * rows, 16): 94,  # scales
        ("all_to_allv", rows * 4096, 16): 94,  # INT8
        ("all_to_allv", 2 * rows * 4096, 16): 94,  # and back
    }


LAYOUTS = {
    "qwen3-32b": ["tp=1", "tp=4,nz=2", "tp=16,sequence_split", "tp=8,quantisation=w8a8"],
    "llama-3-70b": ["tp=1", "tp=8,nz=2", "tp=16,sequence_split", "tp=4,quantisation=w8a8"],
    "qwen3-235b-a22b": [
        "tp=4,dp=4,ep=16,sequence_split,quantisation=w8a8",
        "tp=1,dp=32,ep=32,quantisation=w8a8",
    ],
    "deepseek-v3": [
        "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8",
        "tp=1,dp=32,ep=32,quantisation=w8a8",
        "tp=4,dp=2,ep=8,sequence_split,quantisation=w8a8,nz=2",
    ],
}


@pytest.mark.parametrize("release", bundled_releases())
@pytest.mark.parametrize("model", bundled_names())
def test_every_case_of_a_bundled_model_is_one_that_its_operator_takes(model, release):
    batches = [
        *(Batch(Phase.DECODE, requests, 1, keys) for requests in (1, 7, 64) for keys in (2, 4097)),
        Batch(Phase.DECODE, 8, 1, 4097, padding=3),
        *(Batch(Phase.PREFILL, requests, 1031, 1031) for requests in (1, 3)),
        Batch(Phase.PREFILL, 1, 512, 2048),  # a chunk of a longer prompt
    ]
    wrong = set()
    for layout in LAYOUTS[model]:
        for batch in batches:
            if find_decoder(model).is_mla and batch.phase is Phase.PREFILL:
                batch = replace(batch, keys=batch.queries)
            step = derive_step(
                find_decoder(model), layout_of(layout), batch, find_kernel_set(release)
            )
            assert step.kernels
            for one in step.kernels:
                if refused := refusal(one.record.case, find, "npu"):
                    wrong.add((layout, str(batch), one.layer, refused.reason))
    assert not wrong
