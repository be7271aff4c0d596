"""The description of a model, its layout over ranks, and its serving load."""

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.shapes.kernel_set import bundled_releases, find_kernel_set, read_kernel_set
from collector.shapes.layout import ExpertLaunch, Layout, Quantisation, check_layout, layout_of
from collector.shapes.models import bundled_decoder, bundled_names, find_decoder, read_config
from collector.shapes.serving import Batch, Phase, Serving, check_batch, passes, spread
from collector.shapes.step import derive_step
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


HEADS = ("num_attention_heads", "hidden_size", "num_key_value_heads")


def decoder(**changes):
    return read_config(json.dumps(CONFIG | changes).encode(), name="m", path="config.json")


def test_bundled_model_is_found_by_its_name_and_by_its_owners(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_decoder("Qwen/Qwen3-32B") == find_decoder("qwen3-32b")
    (tmp_path / "qwen3-32b").mkdir()  # a folder of that name does not precede it
    assert find_decoder("qwen3-32b").layers == 64
    for short, name in {
        "dsv3": "deepseek-v3",
        "DeepSeekV3": "deepseek-v3",
        "dsv3.2": "deepseek-v3.2",
        "qwen332b": "qwen3-32b",
        "Qwen/Qwen3_32B": "qwen3-32b",
        "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
        "llama70b": "llama-3-70b",
        "glm51": "glm-5.1",
        "glm52": "glm-5.2",
        **{name: name for name in bundled_names()},
    }.items():
        assert find_decoder(short).name == name
    for word in ("dsv", "deepseek", "dsv3.json", "/"):
        assert bundled_decoder(word) is None


def test_a_config_is_read_from_its_file_or_its_folder(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    found = find_decoder(str(folder))
    assert found == find_decoder(str(folder / "config.json"))
    assert (found.name, found.head_size, found.dense_layers) == ("tiny", 16, 2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, ("model_type", "llama", "qwen3")),
        ({"hidden_size": None}, ("hidden_size",)),
        ({"hidden_size": "64"}, ("hidden_size", 1)),
        ({"hidden_size": True}, ("hidden_size", 1)),
        ({"hidden_size": -1}, ("hidden_size", 1)),
        ({"num_attention_heads": 0}, ("num_attention_heads", 1)),
        ({"index_topk": 2048}, ("index_topk",)),
        ({"sliding_window": 4096}, ("sliding_window",)),
        ({"layer_types": ["sliding_attention"]}, ("layer_types",)),
        ({"layer_types": "full_attention"}, ("layer_types", "list")),
        ({"partial_rotary_factor": 0}, ("partial_rotary_factor", 0, 1)),
        ({"partial_rotary_factor": 0.3}, ("partial_rotary_factor", "even")),
        ({"num_hidden_layers": 1 << 20}, ("num_hidden_layers", 1 << 16)),
        ({"attention_bias": 1}, ("attention_bias", "true", "false")),
        ({"shared_expert_intermediate_size": 64}, ("shared_expert_intermediate_size",)),
        ({"index_topk": 1}, ("index_topk",)),
        ({"mlp_bias": True}, ("mlp_bias",)),
        ({"num_local_experts": 8}, ("num_local_experts",)),
        ({"model_type": "qwen3_moe"}, ("model_type", "qwen3_moe", "experts")),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
            ("model_type", "llama", "experts"),
        ),
        ({"num_attention_heads": 128, "num_key_value_heads": 1}, HEADS),
        ({"num_key_value_heads": 3}, HEADS),
        ({"kv_lora_rank": 512}, ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim")),
    ],
)
def test_unsupported_config_is_refused_with_its_file(changes, named):
    with pytest.raises(BadInput, match=naming("config.json:", *named)):
        decoder(**changes)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"model_type": "qwen2"}, {"biases_qkv": True, "biases_o": False}),
        ({"attention_bias": True}, {"biases_qkv": True, "biases_o": True}),
        ({"partial_rotary_factor": 0.5}, {"rotated": 8}),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, {"rotated": 4}),
        ({"num_nextn_predict_layers": 1}, {"predictors": 1}),
    ],
)
def test_config_supplies_biases_rotations_and_predictors(changes, reported):
    found = decoder(**changes)
    assert {name: getattr(found, name) for name in reported} == reported


MIXTURE = {
    "num_hidden_layers": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, 4),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0, 7]}, 2),
        ({"model_type": "glm4_moe", "first_k_dense_replace": 3}, 3),
        ({"model_type": "glm4_moe", "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6}, 2),
    ],
)
def test_dense_layers_of_a_mixture_are_counted(changes, dense):
    assert decoder(**(MIXTURE | changes)).dense_layers == dense


def test_gated_shared_expert_has_its_own_size():
    found = decoder(**MIXTURE, model_type="qwen2_moe", shared_expert_intermediate_size=96)
    assert (found.shared, found.gates_shared, found.biases_qkv) == (96, True, True)
    batch = Batch(Phase.DECODE, 3, 1, 9)
    step = derive_step(
        *(found, layout_of("experts=apart"), batch, find_kernel_set("vllm-ascend-0.18"))
    )
    gate = [one for one in step.kernels if one.layer == "gate of the shared expert"]
    assert [one.record.kernel_type for one in gate] == ["MatMulV2", "Sigmoid", "Mul"]


def test_layers_that_select_keys_are_counted_in_every_spelling():
    assert find_decoder("glm-5.2").indexers == 21  # 0, 1, 2 and every fourth of 78
    assert find_decoder("glm-5.1").indexers == 78
    sizes = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 8}
    latent = dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim"), 8)
    latent |= {"qk_rope_head_dim": 4, "v_head_dim": 8, "model_type": "deepseek_v32"}
    for reported in (
        {"indexer_types": ["full", "shared"] * 4},
        {"index_topk_pattern": "FSFSFSFS"},
        {"index_topk_freq": 2, "index_skip_topk_offset": 1},
    ):
        assert decoder(**MIXTURE | sizes | latent | reported).indexers == 4


def test_disabled_options_of_a_config_have_no_effect():
    off = {"sliding_window": 4096, "use_sliding_window": False, "mlp_only_layers": []}
    assert decoder(**off, attention_bias=False, partial_rotary_factor=1.0) == decoder()


def test_dtypes_activations_and_quantisation_that_no_step_follows_are_refused():
    same = {"torch_dtype": "bfloat16", "hidden_act": "silu", "quantization_config": None}
    assert decoder(**same) == decoder()
    for key, value in (
        *(("torch_dtype", value) for value in ("float32", "float16", "../../x", 16)),
        *(("dtype", "float16"), ("hidden_act", "gelu"), ("hidden_activation", "gelu_tanh")),
        *(("activation_function", "gelu_new"), ("mlp_hidden_act", "relu2")),
        *(("expert_dtype", "fp4"), ("swiglu_limit", 10.0), ("kv_cache_dtype", "fp8_e4m3")),
    ):
        with pytest.raises(BadInput, match=naming(key)):
            decoder(**{key: value})
    with pytest.raises(BadInput, match=naming("torch_dtype")):
        decoder(text_config=dict(CONFIG), torch_dtype="float32")
    assert decoder(activation_function="silu", kv_cache_dtype="auto") == decoder()
    for key, value in (("kv_cache_scheme", {"num_bits": 8}), ("kv_cache_quant_algo", "FP8")):
        with pytest.raises(BadInput, match=naming(key)):
            decoder(quantization_config={"quant_method": "ascend", key: value})
    of_int8 = decoder(quantization_config={"quant_method": "ascend", "bits": 8})
    check_layout(of_int8, layout_of("tp=2,quantisation=w8a8"))
    with pytest.raises(BadInput, match="quantization_config"):
        check_layout(of_int8, layout_of("tp=2"))
    with pytest.raises(BadInput, match="quantised weights"):  # as MindIE and msmodelslim name it
        check_layout(decoder(quantize="w8a8"), layout_of("tp=2"))


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "[" * 100_000, '{"model_type": ["llama"]}'])
def test_malformed_config_is_refused(text):
    with pytest.raises(BadInput, match=naming("config.json:")):
        read_config(text.encode(), name="m", path="config.json")


def test_missing_or_binary_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe.json")  # which must not be waited for
    (tmp_path / "large.json").write_bytes(b" " * (2 << 20))
    for word in ("config.json", "nowhere.json", "no-such-model", "pipe.json", "large.json"):
        with pytest.raises(BadInput):
            find_decoder(str(tmp_path / word))


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from([*CONFIG, "kv_lora_rank"]), st.none() | st.integers()))
def test_any_sizes_make_a_decoder_or_are_refused(changes):
    try:
        found = decoder(**changes)
        step = derive_step(
            found,
            Layout(),
            Batch(Phase.DECODE, 2, 1, 9),
            find_kernel_set("vllm-ascend-0.18"),
        )
    except BadInput:
        return
    assert all(one.times > 0 and one.record.case.case_id for one in step.kernels)


def test_layout_is_parsed_and_formatted():
    layout = layout_of("tp=8, dp=2,ep=16,sequence_split,quantisation=w8a8,nz=2,experts=apart")
    assert layout == Layout(8, 2, 16, True, Quantisation.W8A8, 2, ExpertLaunch.APART)
    assert layout_of(str(layout)) == layout
    assert layout_of("") == Layout()


@pytest.mark.parametrize(
    "text", ["tp", "tp=0", "tp=x", "pp=2", "tp=2,tp=4", "nz=3", "tp=-1", "é=1"]
)
def test_invalid_layout_is_refused(text):
    with pytest.raises(BadInput, match=naming("layout:")):
        layout_of(text)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("qwen3-32b", "tp=3"),
        ("qwen3-32b", "ep=2"),
        ("deepseek-v3", "tp=8,dp=2,ep=8,quantisation=w8a8"),
        ("deepseek-v3", "tp=3,ep=3,quantisation=w8a8"),
    ],
)
def test_layout_that_a_model_cannot_have_is_refused(model, layout):
    with pytest.raises(BadInput, match=naming("layout:")):
        check_layout(find_decoder(model), layout_of(layout))


def test_key_heads_are_shared_or_repeated():
    for tp in (1, 2, 4):
        check_layout(decoder(), Layout(tp))
    with pytest.raises(BadInput, match=naming("layout:", "tp=4", "6 key heads")):
        check_layout(decoder(num_attention_heads=12, num_key_value_heads=6, head_dim=16), Layout(4))


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        ("tp=8,dp=2,ep=16,sequence_split", ("BF16", "experts=apart", "quantisation=w8a8")),
        ("tp=8,dp=2,ep=16,quantisation=w4a8", ("INT4", "experts=apart")),
        ("tp=8,dp=2,ep=16,quantisation=w4a8,experts=apart,nz=0", ("FRACTAL_NZ",)),
    ],
)
def test_unsupported_experts_are_refused(layout, named):
    batch = Batch(Phase.DECODE, 4, 1, 10)
    with pytest.raises(BadInput, match=naming("deepseek-v3", "vllm-ascend-0.18", *named)):
        derive_step(
            *(find_decoder("deepseek-v3"), layout_of(layout), batch),
            find_kernel_set("vllm-ascend-0.18"),
        )


def test_separate_experts_are_dispatched_up_to_a_pass_size():
    layout = layout_of("tp=1,dp=16,ep=16,experts=apart")
    release = find_kernel_set("vllm-ascend-0.18")
    for tokens, sent in ((512, "MoeDistributeDispatchV2"), (513, "MoeTokenPermute")):
        batch = Batch(Phase.DECODE, tokens, 1, 600)
        step = derive_step(find_decoder("deepseek-v3"), layout, batch, release)
        kernels = {one.record.kernel_type for one in step.kernels}
        assert (
            sent in kernels and len(kernels & {"MoeDistributeDispatchV2", "MoeTokenPermute"}) == 1
        )
        messages = {one.operation for one in step.collectives}
        assert ("all_to_all" in messages) == (tokens > 512)


def test_serving_makes_the_passes_of_its_range():
    found = passes(Serving((1, 5), 100, 51, 300, graph_sizes=(1, 8)))
    assert found == {
        Batch(Phase.PREFILL, 1, 100, 100): 1,
        Batch(Phase.DECODE, 1, 1, 101): 12,  # a quarter of 50 decodes is determined by the first
        Batch(Phase.DECODE, 1, 1, 125): 26,
        Batch(Phase.DECODE, 1, 1, 150): 12,
        Batch(Phase.PREFILL, 3, 100, 100): 1,  # as many whole prompts as fit into 300 tokens
        Batch(Phase.PREFILL, 2, 100, 100): 1,  # the remaining ones of 5
        Batch(Phase.DECODE, 8, 1, 101, padding=3): 12,
        Batch(Phase.DECODE, 8, 1, 125, padding=3): 26,
        Batch(Phase.DECODE, 8, 1, 150, padding=3): 12,
    }


@given(st.integers(1, 10_000), st.integers(1, 60), st.integers(0, 99))
def test_uneven_lengths_keep_their_mean_and_bounds(mean, count, percent):
    found = spread(mean, count, percent)
    assert len(found) == count and found == sorted(found)
    assert abs(sum(found) / count - mean) <= 1
    assert min(found) >= max(1, mean * (100 - percent) // 100 - 1)
    assert max(found) <= mean * (100 + percent) // 100 + 1


@pytest.mark.parametrize("phase", list(Phase))
def test_deployment_of_one_phase_has_only_its_passes(phase):
    both = passes(Serving((1, 5), 100, 51, 300))
    alone = passes(Serving((1, 5), 100, 51, 300, phases=(phase,)))
    assert alone == {
        replace(batch, decodes_alone=batch.is_decode): times
        for batch, times in both.items()
        if batch.phase is phase
    }


def test_answer_of_one_token_has_no_decode_pass():
    with pytest.raises(BadInput, match=naming("serving:", "pass")):
        passes(Serving((1,), 100, 1, 300, phases=(Phase.DECODE,)))


def test_prompt_longer_than_a_pass_is_cut_into_chunks_for_each_request():
    chunks = passes(Serving((2,), 700, 1, 300))
    assert [(b.requests, b.queries, b.keys, times) for b, times in chunks.items()] == [
        (1, 300, 300, 2),
        (1, 300, 600, 2),
        (1, 100, 700, 2),
    ]


def test_prompts_share_passes_with_the_answers_of_other_requests():
    found = passes(Serving((3,), 700, 21, 402, mixed=True))
    assert found == {
        Batch(Phase.PREFILL, 1, 400, 400, mixed_decodes=2, followed_keys=710): 3,
        Batch(Phase.PREFILL, 1, 300, 700, mixed_decodes=2, followed_keys=710): 3,
        # of the 20 tokens of each answer 4 shared passes with the two others' chunks
        Batch(Phase.DECODE, 3, 1, 701): 4,
        Batch(Phase.DECODE, 3, 1, 710): 8,
        Batch(Phase.DECODE, 3, 1, 720): 4,
    }
    with pytest.raises(BadInput, match=naming("serving:", "mixed", "phases")):
        passes(Serving((3,), 700, 21, 400, phases=(Phase.DECODE,), mixed=True))


def test_predicted_tokens_have_verifying_and_drafting_passes():
    found = passes(Serving((3,), 100, 13, 500, predicted=2))
    prompt = Batch(Phase.PREFILL, 3, 100, 100, predicted=2)
    answers = [key for key in found if key.phase is Phase.DECODE]
    assert found[prompt] == found[replace(prompt, is_draft=True)] == 1
    # Of 12 tokens three are verified by each pass; each pass and each prompt has two drafts.
    assert sum(found[one] for one in answers if not one.is_draft) == 4
    assert {one.queries for one in answers if not one.is_draft} == {3}
    drafts = [one for one in answers if one.is_draft]
    assert sum(found[one] for one in drafts) == 4 + 4 + 1
    # The second uses the padding of all tokens: a graph's empty requests, or next to a prompt's.
    assert {(one.requests, one.padding, one.idle) for one in drafts if one.queries == 1} == {
        (9, 6, 0),
        (3, 0, 297),
    }
    with pytest.raises(BadInput, match=naming("serving:", "predicted")):
        passes(Serving((3,), 100, 13, 500, predicted=1, mixed=True))


def test_requests_that_no_row_can_hold_are_refused():
    with pytest.raises(BadInput, match=naming("serving:", 1 << 20, "concurrency")):
        passes(Serving(tuple(range(65_336, 65_536)), 128, 512, 8192))


@pytest.mark.thorough
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.integers(1, 5000),
    st.integers(1, 2000),
    st.integers(100, 9000),
    st.lists(st.integers(1, 256), max_size=5),
    st.booleans(),
)
def test_passes_sum_to_the_served_tokens(concurrency, prompt, answer, most, sizes, mixed):
    found = passes(Serving(tuple(concurrency), prompt, answer, most, tuple(sizes), mixed=mixed))
    new = {Phase.PREFILL: 0, Phase.DECODE: 0}
    for batch, times in found.items():
        check_batch(batch)
        new[batch.phase] += (batch.requests - batch.padding) * batch.queries * times
        new[Phase.DECODE] += batch.mixed_decodes * times
        assert batch.queries <= batch.keys < prompt + answer
        if batch.phase is Phase.PREFILL:
            assert batch.tokens <= most
    served = sum(set(concurrency))
    assert new == {Phase.PREFILL: served * prompt, Phase.DECODE: served * (answer - 1)}


def test_int8_products_of_a_dense_model_have_the_source_code():
    batch, release = Batch(Phase.DECODE, 4, 1, 10), find_kernel_set("vllm-ascend-0.18")
    found = derive_step(find_decoder("qwen3-32b"), layout_of("quantisation=w8a8"), batch, release)
    products = {k.source for k in found.kernels if k.record.kernel_type == "QuantBatchMatmulV3"}
    assert products == {"code"}


def test_a_path_with_a_nul_is_refused():
    with pytest.raises(BadInput, match="file"):
        find_decoder("a\0b.json")


@pytest.mark.parametrize(
    "batch",
    [
        Batch(Phase.DECODE, 0, 1, 1),
        Batch(Phase.PREFILL, 1, 5, 4),
        Batch(Phase.DECODE, 1 << 17, 1, 9),
        Batch(Phase.DECODE, 1, 1, 1 << 30),
        Batch(Phase.DECODE, 4, 1, 9, padding=4),
        Batch(Phase.DECODE, 4, 1, 9, padding=-1),
        Batch(Phase.PREFILL, 4, 9, 9, padding=1),
        Batch(Phase.DECODE, 4, 1, 9, mixed_decodes=1, followed_keys=9),
        Batch(Phase.PREFILL, 4, 9, 9, mixed_decodes=1),
        Batch(Phase.DECODE, 4, 2, 9),
        Batch(Phase.DECODE, 4, 1, 9, skew=100),
        Batch(Phase.DECODE, 4, 1, 9, imbalance=-1),
        Batch(Phase.DECODE, 4, 1, 9, is_draft=True),
        Batch(Phase.PREFILL, 4, 9, 9, mixed_decodes=1, followed_keys=9, predicted=1),
    ],
)
def test_impossible_pass_is_refused(batch):
    with pytest.raises(BadInput):
        derive_step(decoder(), Layout(), batch, find_kernel_set("vllm-ascend-0.18"))


def test_prompt_of_too_many_chunks_is_refused():
    with pytest.raises(BadInput, match=naming("serving:", 4096, "chunks")):
        passes(Serving((1,), 1 << 40, 1, 1))


def test_invalid_line_of_a_kernel_set_is_named():
    line = {"layer": "x", "kernel": "Add", "times": "1", "source": "code"}
    for wrong in (
        {"inputs": ["FLOT (1)"], "outputs": []},
        {"inputs": []},
        {"outputs": [], "in": 1},
    ):
        with pytest.raises(BadInput, match=naming("kernel set test", "line 1")):
            read_kernel_set({"step": [line | wrong]}, "test")


def line_of(layer, **more):
    return {"layer": layer, "kernel": "Add", "inputs": ["INT8 (1)"], "outputs": []} | {
        "times": 1,
        "source": "code",
        **more,
    }


def test_kernel_set_is_read_as_differences_from_another():
    old = read_kernel_set(
        {
            "step": [line_of("a"), line_of("b"), line_of("b"), line_of("c")],
            "unknown": [{"when": "moe", "what": "x"}],
            "most_mlapo_tokens": 7,
        },
        "old",
    )
    new = read_kernel_set(
        {
            "without": ["c"],
            "step": [line_of("b", times=2), line_of("d", behind="a")],
            "most_mlapo_tokens": 9,
            "dense_split_above_tokens": 5,
        },
        "new",
        old,
    )
    assert [(one.layer, one.times.text) for one in new.patterns] == [
        *(("a", "1"), ("d", "1"), ("b", "2")),
    ]
    assert new.unknown == old.unknown
    assert (new.habits.most_mlapo_tokens, new.habits.dense_split_above_tokens) == (9, 5)
    for wrong in ({"step": [line_of("z")]}, {"step": [], "without": ["z"]}):
        with pytest.raises(BadInput, match=naming("kernel set new", "layer", "z")):
            read_kernel_set(wrong, "new", old)


@pytest.mark.parametrize("release", bundled_releases())
def test_kernels_of_a_set_are_declared_operators_or_exchanges(release):
    from collector.ops.registry import find
    from collector.ranks.experts import KERNELS
    from collector.shapes.kernel_set import KernelPattern

    for pattern in find_kernel_set(release).patterns:
        if isinstance(pattern.launch, KernelPattern):
            assert find(pattern.launch.kernel) or pattern.launch.kernel in KERNELS
        assert pattern.source in ("profile", "code")


def test_a_word_that_names_no_model_is_refused():
    with pytest.raises(BadInput, match="unknown model 'nope'"):
        find_decoder("nope")
