"""Recordings of small models from the complete serving stack, as `opmeter model record` makes them.

They need the environment of the release (`python -m tests.npu.stock_stacks install`).
"""

import json
from collections import Counter

import pytest

from collector.database.host_sessions import (
    BETWEEN,
    LAUNCH,
    MAIN_THREAD,
    PASS,
    WHOLE,
    HostDecode,
)
from collector.engine.engine_process import (
    EngineFailed,
    EngineSettings,
    GraphMode,
    TimedDecode,
    record_model,
    running_engine,
)
from collector.engine.environments import RELEASES
from collector.engine.host_time import HostMode, measure_host
from collector.engine.model_folder import ModelFolder
from collector.engine.quantised import WeightScheme
from collector.engine.recorded_calls import PassTokens, derived_again
from collector.report.model_pages import PredictedLaunch
from collector.timeline.call_graph import Cause
from collector.workloads.call_order import CallKind
from collector.workloads.recorded_step import Prompts
from jobs.planning.predicted_passes import launches_of
from jobs.planning.step_time import AssumedTime, PassTimer, StepAssumptions
from tests.lacking import installed_release
from tests.npu.triton_rows import recorded_triton, triton_path

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
EXPERTS = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
DRAFTING = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 1,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
HYBRID = EXPERTS | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25,
    "shared_expert_intermediate_size": 256,
}
PREFILL, DECODE = PassTokens("prefill", 1, 64, 64), PassTokens("decode", 4, 1, 200)
MIXED = PassTokens("mixed", 2, 1, 150, Prompts(1, 64, 192))


def folder_of(values) -> ModelFolder:
    return ModelFolder("tiny", {"config.json": json.dumps(values).encode()})


def kernels_of(one) -> Counter[str]:
    """Return how often each kernel is launched in a pass."""
    found = Counter[str]()
    for launch, times in one.launched():
        found[launch.kernel] += times
    return found


def sent(one) -> Counter[str]:
    """Return how often each collective is launched in a pass."""
    found = Counter[str]()
    for message, times in one.sent():
        found[message.operation] += times
    return found


def test_recording_has_the_launches_of_every_layer(release, tmp_path):
    # the last one's prompts have a few more tokens than a step of the engine
    passes = (PREFILL, DECODE, PassTokens("decode", 64, 1, 130))
    settings = EngineSettings(release, passes, options={"max_num_batched_tokens": 8192})
    found = record_model(folder_of(DENSE), settings, tmp_path)
    assert found.wheels["vllm-ascend"] == RELEASES[release].vllm_ascend
    assert found.settings["block_size"] == 128
    for one in found.passes:
        kernels = kernels_of(one)
        each = {"FusedInferAttentionScore": 12, "ReshapeAndCacheNdKernel": 12, "SwiGlu": 12}
        assert each.items() <= kernels.items(), one
        assert (kernels["MatMulV2"], kernels["AddRmsNormBias"]) == (4 * 12 + 1, 2 * 12), one
        shapes = {launch.cells.get("Input Shapes") for launch in one.launches}
        tokens = one.requests * one.queries
        assert f'"{tokens},512;2048,512"' in shapes, one  # gate and up, in their memory layout
        assert not any(launch.in_graph for launch in one.launches)
        assert derived_again(one) == one
        (at,) = (at for at, x in enumerate(one.launches) if x.kernel == "SwiGlu")
        assert one.places()[CallKind.LAUNCH, at] == {"block 1, 12 times": 12}
        assert all(call.host_ns < 10**9 for call in one.order.calls)
    (attention,) = (x for x in found.passes[1].launches if x.kernel == "FusedInferAttentionScore")
    assert attention.extra["Runtime actual_seq_lengths_kv_values"] == "200,200,200,200"


def test_running_engine_records_further_passes_and_refuses_what_it_cannot_run(usual, tmp_path):
    options = {"max_model_len": 512, "max_num_batched_tokens": 8192, "max_num_seqs": 8}
    graph = GraphMode.FULL_DECODE
    settings = EngineSettings(usual, (PREFILL,), graph=graph, options=options, has_all_graphs=True)
    with running_engine(folder_of(DENSE), settings, tmp_path) as engine:
        decode, refused, mixed = engine.record([DECODE, PassTokens("prefill", 9, 64, 64), MIXED])
    (first,) = engine.recording.passes
    assert kernels_of(first)["SwiGlu"] == kernels_of(mixed)["SwiGlu"] == 12
    assert isinstance(refused, EngineFailed)
    assert all(x.in_graph for x in decode.launches if x.kernel == "SwiGlu")


@pytest.mark.parametrize("mode", [HostMode.EAGER, HostMode.GRAPH, HostMode.FALLBACK])
def test_host_is_timed_in_repeated_decodes(release, tmp_path, mode):
    settings = EngineSettings(release, (DECODE,), tp=2)
    decode = HostDecode("tiny", "tp=2,dp=1,ep=1", mode)
    found = measure_host(folder_of(DENSE), settings, decode, TimedDecode(2, 5), tmp_path)
    assert found.stack.vllm == RELEASES[release].vllm_ascend
    assert {*WHOLE, "copy"} <= found.us.keys()
    assert ("replay" in found.us) == (mode is HostMode.GRAPH)
    assert ("aclnnMatmul" in found.us) and found.watch.launches == 5
    assert all(len(us) == 5 and min(us) > 0 for name, us in found.us.items() if name in WHOLE)
    launches = [round(a / b) for a, b in zip(found.us[PASS], found.us[LAUNCH], strict=True)]
    assert (min(launches) > 12 * 8) == (mode is not HostMode.GRAPH)  # 8 in each layer
    # what the log has and what the main thread computed
    logged, own = (sum(found.us[name]) for name in (PASS, MAIN_THREAD))
    assert 0.8 * own < logged + sum(found.us[BETWEEN]) < 1.2 * own


def test_host_is_timed_with_a_queue_of_its_own(usual, tmp_path):
    settings = EngineSettings(usual, (DECODE,))
    decode = HostDecode("tiny", "tp=1,dp=1,ep=1", HostMode.EAGER, 1)
    found = measure_host(folder_of(DENSE), settings, decode, TimedDecode(2, 5), tmp_path)
    assert sum(found.us[MAIN_THREAD]) < sum(found.us[PASS]) + sum(found.us[BETWEEN])


def test_single_rank_in_a_graph_records_messages_streams_and_updates(usual, tmp_path):
    settings = EngineSettings(usual, (DECODE,), tp=2, graph=GraphMode.FULL_DECODE)
    found = record_model(folder_of(DENSE), settings, tmp_path)
    (one,) = found.passes
    assert sent(one)["all_reduce"] == 2 * 12 + 1
    reductions = [x for x in one.messages if x.operation == "all_reduce"]
    assert {(x.message_bytes, x.group_size) for x in reductions} == {(4 * 512 * 2, 2)}
    inside = [x for x in one.launches if x.in_graph]
    assert {"MatMulV2", "SwiGlu"} <= {x.kernel for x in inside}
    assert found.settings["graph_sizes"] == [1, 2, 4]
    calls = one.order.calls
    kinds = Counter(call.kind for call in calls)
    assert (kinds["replay"], kinds["replay_end"]) == (1, 1)
    # the host updates the attention of each layer, which waits for it, while the graph runs
    assert (kinds["await_update"], kinds["update"]) == (12, 12)
    begin, end = (next(at for at, x in enumerate(calls) if x.kind == kind)
                  for kind in ("replay", "replay_end"))  # fmt: skip
    assert all(call.host_ns == 0 for call in calls[begin + 1 : end])
    streams = {kind: {x.stream for x in calls[begin:end] if x.kind == kind} for kind in CallKind}
    assert len(streams[CallKind.LAUNCH]) == 1
    assert streams[CallKind.LAUNCH].isdisjoint(streams[CallKind.MESSAGE])
    assert kinds["wait"] >= 2 * (2 * 12 + 1)  # of the message for its input, and of what follows
    assert derived_again(one) == one
    check_timeline(found, one)


def check_timeline(recording, one):
    """Check the time of a pass in which each kernel and each message takes 100 us: all are on the
    critical path or hidden beside it, and a host that is slow bounds the pass by its updates."""

    def predict(x):
        ends = (100.0, 100.0, 100.0)
        return PredictedLaunch(x.layer, x.kernel_type, x.times, x.size, "", *ends, "measured")

    def timed(host_us):
        host = AssumedTime("host", Cause.HOST, host_us, host_us, host_us)
        wait = AssumedTime("wait", Cause.WAITING, 0.0, 0.0, 0.0)
        timer = PassTimer(predict, lambda case: None, 1.0, StepAssumptions(host, host, wait))
        return timer.of_recording(one, launches_of(recording, one, None, "npu")).time

    count = sum(times for _, times in (*one.launched(), *one.sent()))
    found = timed(0.0)
    assert 100.0 * count <= found.value_us + found.hidden_us <= 100.0 * count + 1000.0  # copies
    assert found.hidden_us < 0.05 * found.value_us
    assert timed(10_000.0).parts[Cause.HOST] > 12 * 10_000.0


def test_experts_are_recorded_over_data_parallel_ranks(release, tmp_path):
    passes = (PREFILL, DECODE, MIXED)
    settings = EngineSettings(release, passes, tp=2, dp=2, ep=4, graph=GraphMode.FULL_DECODE)
    found = record_model(folder_of(EXPERTS), settings, tmp_path)
    assert found.layout == {"tp": 2, "dp": 2, "ep": 4}
    prefill, decode, mixed = found.passes
    for one in found.passes:
        kernels = kernels_of(one)
        assert kernels["FusedInferAttentionScore"] == 12, one
        assert kernels["GroupedMatmul"] == 2 * 12, one
    # each rank of a group of 2 sends its 32 tokens to 2 experts; host code reads the rows of each
    rows = [x for x in prefill.messages if x.operation == "all_to_all"]
    assert [(x.message_bytes, x.group_size) for x in rows] == [(32 * 2 * 512 * 2, 4)]
    assert sent(prefill)["all_to_all"] == 2 * 12
    (routed,) = (x for x in decode.launches if x.kernel == "MoeDistributeDispatchV2")
    # a chunk of a prompt with earlier tokens, and decoding requests
    assert not any(launch.in_graph for launch in mixed.launches)
    lengths = [
        (
            x.extra.get("Runtime actual_seq_lengths_values"),
            x.extra.get("Runtime actual_seq_lengths_kv_values"),
        )
        for x in mixed.launches
        if x.kernel == "FusedInferAttentionScore"
    ]
    assert lengths == [("1,2,66", "150,150,192")]
    # in a graph: the other group is assumed to use one too
    assert routed.in_graph
    assert routed.cells["Input Shapes"].startswith('"2,512;2,2;')
    # of the 16 rows that a rank of 4 receives at most, 4 have tokens
    products = [x for x in decode.launches if x.kernel == "GroupedMatmul"]
    assert {x.extra["Runtime group_list_values"] for x in products} == {"2,4"}
    assert found.settings["graph_mode"] == "FULL_DECODE_ONLY"


def test_cache_of_eight_bits_has_a_scale_for_each_channel(release, tmp_path):
    config = folder_of(DENSE).quantised(WeightScheme.W8A8C8)
    (one,) = record_model(config, EngineSettings(release, (DECODE,)), tmp_path).passes
    ((attention, times),) = (
        (x, times) for x, times in one.launched() if x.kernel == "FusedInferAttentionScore"
    )
    assert times == 12
    assert attention.cells["Input Data Types"].startswith("DT_BF16;INT8;INT8;")
    assert attention.cells["Input Shapes"].count("2,1,128;") >= 2  # heads of keys, and of values


def test_ranks_that_share_a_prompt_have_halves_of_its_parts(usual, tmp_path):
    settings = EngineSettings(
        usual,
        (PassTokens("prefill", 1, 256, 256),),
        options={"prefill_context_parallel_size": 2},
    )
    found = record_model(folder_of(DENSE), settings, tmp_path)
    (one,) = found.passes
    assert found.layout["pcp"] == 2
    assert {x.group_size for x in one.messages} == {2}
    attention = [x for x in one.launches if x.kernel == "FusedInferAttentionScore"]
    assert {x.extra["Runtime actual_seq_lengths_values"] for x in attention} == {"64"}


def test_drafting_layers_are_a_kind_and_stay_in_floating_point(usual, tmp_path):
    verify = PassTokens("decode", 4, 2, 200)  # one drafted token each, accepted in each pass
    settings = EngineSettings(
        usual, (verify,), tp=2, ep=2, speculative=1, graph=GraphMode.PIECEWISE
    )
    config = folder_of(DRAFTING).quantised(WeightScheme.W4A8)
    found = record_model(config, settings, tmp_path)
    (one,) = found.passes
    drafted, is_draft = Counter[int](), False
    for call in one.order.calls:
        if call.kind in (CallKind.DRAFT, CallKind.DRAFT_END):
            is_draft = call.kind is CallKind.DRAFT
        drafted[call.subject] += is_draft and call.kind is CallKind.LAUNCH
    launches = [(x, times, drafted[at]) for at, (x, times) in enumerate(one.launched())]
    ((attention, *numbers),) = (x for x in launches if x[0].kernel == "FusedInferAttentionScore")
    assert numbers == [12 + 1, 1]
    assert attention.extra["Runtime actual_seq_lengths_kv_values"] == "200,200,200,200"
    assert not attention.in_graph  # graphs contain what is between attention
    experts = [x for x in launches if x[0].kernel == "GroupedMatmul"]
    packed = {x.call for x, _, _ in experts if x.in_graph}
    assert len(packed) == 2 and all("i32[16," in call for call in packed)  # 8 of 4 bits each
    assert {drafts for x, _, drafts in experts if x.call not in packed} == {1}
    joined = [x for x in launches if x[0].call.startswith("ACLNN aclnnMm(bf16[8,1024]:ND")]
    assert [x[1:] for x in joined] == [(1, 1)]  # of token and state


def test_layers_of_linear_attention_are_found_in_blocks(usual, tmp_path):
    found = record_model(folder_of(HYBRID), EngineSettings(usual, (PREFILL, DECODE)), tmp_path)
    for one in found.passes:
        kernels = kernels_of(one)
        assert kernels["FusedInferAttentionScore"] == 3, one
        assert kernels["fused_qkvzba_split_reshape_cat_kernel"] == 9, one
        (split,) = (x for x in one.launches if x.kernel.startswith("fused_qkvzba"))
        tokens = one.requests * one.queries  # of queries, keys, values, and two of each value head
        assert split.cells["Input Shapes"] == f'"{tokens},1536;{tokens},8"'
        assert split.cells["Output Shapes"].startswith(f'"{tokens},1024;{tokens},4,128;')


ERNIE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_intermediate_size": 256,
    "moe_layer_start_index": 3,
    "moe_layer_end_index": 6,
    "moe_layer_interval": 1,
    "moe_num_shared_experts": 0,
    "moe_use_aux_free": True,
    "use_bias": False,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 14,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "query_pre_attn_scalar": 128,
    "sliding_window": 512,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},  # of layers without a window
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
STEP = {
    "architectures": ["Step3TextForCausalLM"],
    "model_type": "step3_text",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_attention_groups": 1,
    "head_dim": 128,
    "share_q_dim": 256,
    "moe_num_experts": 8,
    "moe_top_k": 2,
    "moe_intermediate_size": 256,
    "share_expert_dim": 256,
    "moe_layers_enum": "2,3,4",
    "vocab_size": 1024,
    "max_position_embedding": 4096,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
# Of each model, launches by hand. ERNIE: 3 dense layers and 4 of experts. Gemma: 12 layers with a
# window and 2 without, whose rotation is scaled, and concatenates halves of queries and keys. Step:
# 3 layers of experts, each with a shared one, between dense ones, of which one is the last layer.
BY_HAND = {
    "ernie": (
        (ERNIE, {"tp": 2, "ep": 2}),
        {
            "FusedInferAttentionScore": 7,
            "AddRmsNormBias": 2 * 7,
            "SwiGlu": 3 + 4,
            "MoeGatingTopK": 4,
            "GroupedMatmul": 2 * 4,
        },
    ),
    "gemma": (
        (GEMMA, {}),
        {"FusedInferAttentionScore": 14, "Gelu": 14, "_triton_rope": 12, "ConcatD": 2 * 4},
    ),
    "step": (
        (STEP, {"tp": 2, "ep": 2}),
        {"FusedInferAttentionScore": 6, "SwiGlu": 3 + 3 * 2, "MoeGatingTopK": 3},
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_layers_of_several_kinds_launch_what_the_config_says(usual, tmp_path, name):
    (values, ranks), expected = BY_HAND[name]
    found = record_model(folder_of(values), EngineSettings(usual, (PREFILL,), **ranks), tmp_path)
    (one,) = found.passes
    kernels = kernels_of(one)
    assert {kernel: kernels[kernel] for kernel in expected} == expected


def test_mask_of_requests_without_tokens_chooses_the_others(tmp_path):
    """0.23 keeps the states of requests with tokens: those that pad to the ranks have none."""
    *_, last = RELEASES
    passes = (PassTokens("prefill", 3, 41, 41), DECODE)  # a fourth request has the 124th token
    settings = EngineSettings(
        installed_release(last),
        passes,
        tp=2,
        ep=2,
        environment={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"},
        graph=GraphMode.FULL_DECODE,
    )
    padded, _ = record_model(folder_of(HYBRID), settings, tmp_path).passes
    puts = [x.cells["Input Shapes"] for x in padded.launches if x.kernel == "IndexPutV2"]
    assert '"4,2,128,128;3,2,128,128;1;1;3"' in puts


def test_engine_error_is_reported_in_one_line(usual, tmp_path):
    unknown = folder_of(DENSE | {"architectures": ["NoSuchModel"], "model_type": "no_such_type"})
    with pytest.raises(EngineFailed) as raised:
        record_model(unknown, EngineSettings(usual, (DECODE,)), tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("setting", [{"dp": 2}, {"speculative": 1}])
def test_settings_that_a_model_does_not_have_are_refused(usual, tmp_path, setting):
    """vLLM accepts data parallel groups of a dense model, which are independent engines."""
    with pytest.raises(EngineFailed) as raised:
        record_model(folder_of(DENSE), EngineSettings(usual, (DECODE,), **setting), tmp_path)
    assert "\n" not in str(raised.value)


def test_triton_launches_of_every_row_equal_the_file(release):
    again = f"record again, and read the difference: python -m tests.npu.triton_rows {release}"
    assert recorded_triton(release) == triton_path(release).read_text(), again
