"""vLLM-Ascend's own operators that the catalogue calls, for machines without the library: it is
built with CANN, for an NPU.

The schemas of `torch.ops._C_ascend` are those in the wheel of 0.18.0, or else of 0.23.0; those of
`torch.ops.vllm`, which its Python registers without any, are ours, and those of operators that no
wheel has are of vLLM-Ascend's sources. `tests/stacks` runs the extension itself. An implementation
here computes nothing: it returns memory of the right shapes, and records the call in `CALLS` and,
under the fake CANN, in its log of launches as `CUSTOM name(bf16[2,3]:ND, ...)`.
"""

import ctypes
import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# The recorded calls: name, and the arguments in order, keywords after positions.
CALLS: list[tuple[str, tuple[Any, ...]]] = []

_WHEELS = Path(__file__).parents[2] / "tools" / "operators" / "releases" / "schemas"
_RELEASES = ("0.18.0", "0.23.0")  # the first that has an operator has its schema
_RUNTIME, _RECORD = "libascendcl.so", "opmeter_fake_cann_record"
_ND = 2  # acl/acl_base.h
_FORMATS = {0: "NCHW", 1: "NHWC", 2: "ND", 29: "FRACTAL_NZ", 30: "NCDHW", 47: "NCL"}
_SHORT = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
}

# namespace -> schema -> the result of a call, from its arguments by name.
_MLA_OUTPUTS = ("q_out0", "kv_cache_out0", "q_out1", "kv_cache_out1", "inner_out")
_SCHEMAS: dict[str, dict[str, Callable[[Any, dict[str, Any]], Any]]] = {
    "vllm": {
        "npu_rotary_embedding(Tensor positions, Tensor query, Tensor key, Tensor cos_sin_cache, "
        "SymInt head_size, SymInt rotary_dim, bool is_neox_style, Tensor? offsets=None) "
        "-> (Tensor, Tensor)": lambda torch, named: (
            torch.empty_like(named["query"]),
            torch.empty_like(named["key"]),
        ),
        "qkv_rmsnorm_rope(Tensor input, Tensor cos_sin_cache, Tensor positions, Tensor q_weight, "
        "Tensor k_weight, SymInt q_hidden_size, SymInt kv_hidden_size, SymInt head_dim, float eps, "
        "Tensor? q_bias=None, Tensor? k_bias=None) "
        "-> (Tensor, Tensor, Tensor)": lambda torch, named: tuple(
            named["input"].new_empty((len(named["input"]), named[f"{width}_hidden_size"]))
            for width in ("q", "kv", "kv")
        ),
        "triton_split_qkv_rmsnorm_mrope(Tensor qkv, Tensor q_weight, Tensor k_weight, "
        "Tensor cos_sin, SymInt num_q_heads, SymInt num_kv_heads, SymInt head_size, float eps, "
        "SymInt[] mrope_section, bool is_interleaved, SymInt? rope_dim=None, Tensor? q_bias=None, "
        "Tensor? k_bias=None, bool has_gate=False) "
        "-> (Tensor, Tensor, Tensor, Tensor)": lambda torch, named: tuple(
            named["qkv"].new_empty((len(named["qkv"]), heads * named["head_size"]))
            for heads in (
                named["num_q_heads"],
                *(named["num_kv_heads"],) * 2,
                named["num_q_heads"] * named.get("has_gate", False),
            )
        ),
        "split_qkv_tp_rmsnorm_rope(Tensor input, Tensor q_weight, Tensor k_weight, "
        "SymInt q_hidden_size, SymInt kv_hidden_size, SymInt head_dim, SymInt rotary_dim, "
        "float eps, SymInt tp_world, Tensor cos, Tensor sin) "
        "-> (Tensor, Tensor, Tensor)": lambda torch, named: _split_in_two(torch, named),
        "muls_add(Tensor x, Tensor y, float scale) -> Tensor": lambda torch, named: (
            torch.empty_like(named["x"])
        ),
    },
    # csrc/torch_binding.cpp of vLLM-Ascend's main branch
    "_C_ascend": {
        "npu_rms_norm_cast(Tensor x, Tensor gamma, float epsilon) -> (Tensor, Tensor)": (
            lambda torch, named: (
                torch.empty_like(named["x"]),
                torch.empty_like(named["x"], dtype=torch.float32),
            )
        ),
        "npu_scatter_nd_update_sk(Tensor(a!) var, Tensor indices, Tensor update) -> ()": (
            lambda torch, named: None
        ),
        "npu_sparse_flash_mla(Tensor q, *, Tensor? ori_kv=None, Tensor? cmp_kv=None, "
        "Tensor? ori_sparse_indices=None, Tensor? cmp_sparse_indices=None, "
        "Tensor? ori_block_table=None, Tensor? cmp_block_table=None, Tensor? cu_seqlens_q=None, "
        "Tensor? cu_seqlens_ori_kv=None, Tensor? cu_seqlens_cmp_kv=None, Tensor? seqused_q=None, "
        "Tensor? seqused_ori_kv=None, Tensor? seqused_cmp_kv=None, Tensor? cmp_residual_kv=None, "
        "Tensor? ori_topk_length=None, Tensor? cmp_topk_length=None, Tensor? sinks=None, "
        "Tensor? metadata=None, float softmax_scale=1.0, int cmp_ratio=1, int ori_mask_mode=4, "
        "int cmp_mask_mode=3, int ori_win_left=127, int ori_win_right=0, str layout_q='BSND', "
        "str layout_kv='PA_BBND', int topk_value_mode=1, bool return_softmax_lse=False) "
        "-> (Tensor, Tensor)": lambda torch, named: (
            torch.empty_like(named["q"]),
            named["q"].new_empty((0,), dtype=torch.float32),
        ),
        "npu_sparse_flash_mla_metadata(int num_heads_q, int num_heads_kv, int head_dim, *, "
        "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_ori_kv=None, "
        "Tensor? cu_seqlens_cmp_kv=None, Tensor? seqused_q=None, Tensor? seqused_ori_kv=None, "
        "Tensor? seqused_cmp_kv=None, Tensor? cmp_residual_kv=None, "
        "Tensor? ori_topk_length=None, Tensor? cmp_topk_length=None, int? batch_size=None, "
        "int? max_seqlen_q=None, int? max_seqlen_ori_kv=None, int? max_seqlen_cmp_kv=None, "
        "int? ori_topk=None, int? cmp_topk=None, int? cmp_ratio=None, int? ori_mask_mode=None, "
        "int? cmp_mask_mode=None, int? ori_win_left=None, int? ori_win_right=None, "
        "str? layout_q=None, str? layout_kv=None, bool? has_ori_kv=None, "
        "bool? has_cmp_kv=None) -> Tensor": lambda torch, named: _plan(named["cu_seqlens_q"]),
        "npu_quant_lightning_indexer_v2(Tensor query, Tensor key, Tensor weights, "
        "Tensor query_dequant_scale, Tensor key_dequant_scale, int topk, int quant_mode, *, "
        "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, "
        "Tensor? seqused_k=None, Tensor? cmp_residual_k=None, Tensor? block_table=None, "
        "Tensor? output_idx_offset=None, Tensor? metadata=None, int max_seqlen_q=-1, "
        "str layout_q='BSND', str layout_k='BSND', int mask_mode=0, int cmp_ratio=1, "
        "int return_value=0) -> (Tensor, Tensor)": lambda torch, named: (
            _indexed(torch, {**named, "sparse_count": named["topk"]}),
            named["query"].new_empty((0,), dtype=torch.bfloat16),
        ),
        "npu_quant_lightning_indexer_v2_metadata(int num_heads_q, int num_heads_k, int head_dim, "
        "int topk, int quant_mode, *, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
        "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? cmp_residual_k=None, "
        "int batch_size=0, int max_seqlen_q=0, int max_seqlen_k=0, str layout_q='BSND', "
        "str layout_k='BSND', int mask_mode=0, int cmp_ratio=1) "
        "-> Tensor": lambda torch, named: _plan(named["cu_seqlens_q"]),
    },
}
# Results of operators of its extension, whose schemas are the wheel's.
_OF_EXTENSION: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "npu_moe_init_routing_custom": lambda torch, named: _routed(torch, named),
    "npu_lightning_indexer": lambda torch, named: _indexed(torch, named),
    "npu_lightning_indexer_quant": lambda torch, named: _indexed(torch, named),
    "npu_apply_top_k_top_p": lambda torch, named: torch.empty_like(named["logits"]),
    "batch_matmul_transpose": lambda torch, named: None,
    "npu_add_rms_norm_bias": lambda torch, named: (
        torch.empty_like(named["x1"]),
        _row_statistics(torch, named["x1"], named["gamma"]),
        torch.empty_like(named["x1"]),
    ),
    "mla_preprocess": lambda torch, named: tuple(
        torch.empty_like(named[name]) for name in _MLA_OUTPUTS
    ),
    "npu_hc_pre_v2": lambda torch, named: _streams_read(torch, named["x"]),
    "npu_hc_post": lambda torch, named: torch.empty_like(named["residual"]),
    "inplace_partial_rotary_mul": lambda torch, named: None,
    "npu_rms_norm_dynamic_quant": lambda torch, named: (
        torch.empty_like(named["x"], dtype=torch.int8),
        named["x"].new_empty(named["x"].shape[:-1], dtype=torch.float32),
    ),
    "npu_scatter_nd_update_v2": lambda torch, named: None,
    "npu_fused_gdn_gating": lambda torch, named: (
        named["a"].new_empty((1, *named["a"].shape), dtype=torch.float32),
        named["b"].new_empty((1, *named["b"].shape)),
    ),
    "npu_causal_conv1d_custom": lambda torch, named: torch.empty_like(named["x"]),
    "chunk_gated_delta_rule_fwd_h": lambda torch, named: _states(torch, named),
    "chunk_fwd_o": lambda torch, named: torch.empty_like(named["v"]),
    "compressor": lambda torch, named: named["x"].new_empty(
        (len(named["rope_sin"]), len(named["norm_weight"]))
    ),
    "compressor_metadata": lambda torch, named: (
        *(
            named[table].new_empty((named["num_compressed_tokens"], 1, 1, named[table].shape[1]))
            for table in ("rope_cos", "rope_sin")
        ),
        named["cu_seqlens"].new_empty((named["num_compressed_tokens"], 2)),
    ),
    "npu_sparse_attn_sharedkv": lambda torch, named: (
        torch.empty_like(named["q"]),
        named["q"].new_empty((0,), dtype=torch.float32),
    ),
    "npu_sparse_attn_sharedkv_metadata": lambda torch, named: _plan(named["cu_seqlens_q"]),
    "npu_vllm_quant_lightning_indexer": lambda torch, named: (
        _indexed(torch, named),
        named["query"].new_empty((0,), dtype=torch.float32),
    ),
    "npu_vllm_quant_lightning_indexer_metadata": lambda torch, named: _plan(
        named["actual_seq_lengths_query"]
    ),
    "moe_gating_top_k_hash": lambda torch, named: (
        named["x"].new_empty((len(named["x"]), named["k"])),
        named["x"].new_empty((len(named["x"]), named["k"]), dtype=torch.int32),
        torch.empty_like(named["x"], dtype=torch.float32),
    ),
}
# What functions read of an engine.
_CONFIG = types.SimpleNamespace(
    rejection_sampler_config=types.SimpleNamespace(enable_block_verify=False)
)
# Functions of Python that the catalogue calls by their module.
_FLA = "vllm_ascend.ops.triton.fla"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "vllm_ascend.ops.triton.rope.rope_forward_triton_siso": lambda qk, *args, **named: qk,
    "vllm_ascend.ops.triton.mamba.causal_conv1d.causal_conv1d_update_npu": (
        lambda x, *args, **named: x.unsqueeze(1)
    ),
    "vllm_ascend.ops.triton.layernorm_gated.layer_norm_fwd_npu": lambda x, *args, **named: (
        x.new_empty(x.shape),
        None,
        _wide(x, x.shape[:1]),
    ),
    "vllm_ascend.ops.triton.fused_gdn_gating.fused_gdn_gating_patch": lambda log, a, b, bias: (
        _wide(a, (1, *a.shape)),
        b.new_empty((1, *b.shape)),
    ),
    "vllm_ascend.worker.block_table.BlockTable.compute_slot_mapping": lambda *args: None,
    "vllm_ascend.ops.triton.penalty._apply_all_penalties_triton": lambda *args: None,
    "vllm_ascend.ops.triton.bincount.get_token_bin_counts_and_mask_triton": (
        lambda tokens, vocabulary, rows: (_counts(tokens, (rows, vocabulary)), None)
    ),
    "vllm_ascend.sample.rejection_sampler.expand_batch_to_tokens": (
        lambda x, ends, tokens: x.new_empty((tokens,))
    ),
    "vllm_ascend.sample.rejection_sampler.rejection_sample": lambda *args: _sampled(*args),
    "vllm_ascend.sample.rejection_sampler.sample_recovered_tokens": (
        lambda most, counts, ends, drafts, *args: drafts.new_empty(drafts.shape)
    ),
    "vllm_ascend.spec_decode.eagle_proposer.AscendEagleProposer.prepare_inputs_padded": (
        lambda proposer, tokens, drafts, valid: (
            *(None, None),
            *(_counts(valid, valid.shape) for _ in range(2)),
        )
    ),
    "vllm_ascend.spec_decode.dflash_proposer.AscendDflashProposer.set_inputs_first_pass": (
        lambda *args: _expanded(*args)
    ),
    "vllm_ascend.ops.triton.activation.swiglu_quant.swiglu_quant": (
        lambda x, groups, kind: (
            x.new_empty((len(x), x.shape[1] // 2), dtype=importlib.import_module("torch").int8),
            _wide(x, x.shape[:1]),
        )
    ),
    "vllm_ascend.ops.triton.rms_norm.triton_q_rms": lambda x, eps: x.new_empty(x.shape),
    f"{_FLA}.l2norm.l2norm_fwd": lambda x: _of_length_1("l2norm_fwd_kernel2_loop", x),
    "vllm.model_executor.layers.fla.ops.l2norm.l2norm_fwd": lambda x: _of_length_1(
        "l2norm_fwd_kernel2", x
    ),
    f"{_FLA}.fused_qkvzba_split_reshape.fused_qkvzba_split_reshape_cat": (
        lambda qkvz, ba, keys, heads, key_size, size: (
            qkvz.new_empty((len(qkvz), 2 * keys * key_size + heads * size)),
            qkvz.new_empty((len(qkvz), heads, size)),
            *(ba.new_empty((len(ba), heads)) for _ in range(2)),
        )
    ),
    f"{_FLA}.sigmoid_gating.fused_sigmoid_gating_delta_rule_update": (
        lambda **named: named["v"].new_empty(named["v"].shape)
    ),
    f"{_FLA}.utils.clear_ssm_states": lambda states, has_initial: None,
    f"{_FLA}.cumsum.chunk_local_cumsum": lambda g, **named: g.float(),
    f"{_FLA}.chunk_scaled_dot_kkt.chunk_scaled_dot_kkt_fwd": lambda k, **named: _wide(
        k, (*k.shape[:2], named["beta"].shape[-1], 64)
    ),
    f"{_FLA}.solve_tril.solve_tril": lambda A, **named: _solved(A, **named),
    f"{_FLA}.wy_fast.recompute_w_u_fwd": lambda **named: (
        named["k"].new_empty((*named["v"].shape[:3], named["k"].shape[3])),
        named["v"].new_empty(named["v"].shape),
    ),
    f"{_FLA}.chunk_delta_h.chunk_gated_delta_rule_fwd_h": lambda **named: (
        named["k"].new_empty((1, len(named["chunk_indices"]), *named["initial_state"].shape[1:])),
        named["u"].new_empty(named["u"].shape),
        _wide(named["initial_state"], named["initial_state"].shape),
    ),
    f"{_FLA}.chunk_o.chunk_fwd_o": lambda **named: named["v"].new_empty(named["v"].shape),
}


def _wide(tensor: Any, shape: Sequence[int]) -> Any:
    """Return one of FLOAT if the tensor is."""
    import torch

    return tensor.new_empty(shape, dtype=torch.float32)


def _solved(matrices: Any, **named: Any) -> Any:
    """Return what the function launches: the inverses of small blocks, and from them those of
    chunks."""
    import torch

    small = matrices.new_empty((*matrices.shape[:3], 16))
    found = torch.empty_like(matrices, dtype=named["output_dtype"])
    ends = named["cu_seqlens"]
    large = named["chunk_indices_large_block"], named["chunk_indices_bt"]
    _record(torch, "triton.solve_tril_16x16_kernel", (matrices, small, ends, large[0]))
    kernel = "triton.merge_16x16_to_64x64_inverse_kernel"
    _record(torch, kernel, (matrices, small, found, ends, large[1]))
    return found


def _sampled(
    drafts: Any,
    counts: Any,
    most: int,
    ends: Any,
    none: Any,
    logits: Any,
    bonus: Any,
    sampling: Any,
) -> Any:
    """Return the launches of the function: one kernel for greedy requests, or for random ones."""
    import torch

    out = _counts(drafts, (len(counts), most + 1))
    greedy = drafts.new_empty((len(counts),), dtype=torch.bool)
    if sampling.all_random:
        others = drafts.new_empty(drafts.shape), _wide(drafts, drafts.shape)
        given = (out, ends, drafts, None, logits, bonus, *others, greedy)
        is_block = most >= 3 and _CONFIG.rejection_sampler_config.enable_block_verify
        kernel = f"triton.rejection_random_sample_{'block_verify_' * is_block}kernel"
        _record(torch, kernel, (*given, "1 2 4 5 6 7 8 -> 0"))
        return out
    argmax = drafts.new_empty(drafts.shape, dtype=torch.int64)
    if sampling.all_greedy and set(counts) == {1}:
        kernel = "triton.rejection_greedy_sample_spec_len_1_triton"
        _record(torch, kernel, (out, drafts, argmax, bonus))
        return out
    given = (out, ends, drafts, argmax, bonus, None if sampling.all_greedy else greedy)
    _record(torch, "triton.rejection_greedy_sample_triton", given)
    return out


def _expanded(
    proposer: Any,
    target_tokens: Any,
    tokens: Any,
    positions: Any,
    states: Any,
    places: Any,
    batch: Any,
    rejected: Any,
) -> Any:
    """Return the launch of the method, and the places of drafted tokens."""
    import torch

    samples = _counts(tokens, (len(tokens) * proposer.num_speculative_tokens,))
    inputs = (tokens, positions, batch.slot_mapping)
    written = (
        *(proposer.input_ids, proposer._context_positions_buffer, proposer.positions),
        *(proposer._context_slot_mapping_buffer, proposer._slot_mapping_buffer),
    )
    metadata = batch.block_table_tensor, batch.query_start_loc, batch.seq_lens, rejected
    layout = "0 1 2 9 10 11 12 -> 3 4 5 6 7 8"
    kernel = "triton.copy_and_expand_dflash_inputs_kernel_single_grid"
    _record(torch, kernel, (*inputs, *written, samples, *metadata, layout))
    return None, samples, None, None


def _of_length_1(kernel: str, x: Any) -> Any:
    """Return the launches of two functions of one name."""
    import torch

    out = x.new_empty(x.shape)
    _record(torch, f"triton.{kernel}", (x, out))
    return out


def _split_in_two(torch: Any, named: dict[str, Any]) -> Any:
    """Return the launches of the function: the split with mean squares, and of them norms and
    rotations."""
    x, cos, sin = named["input"], named["cos"], named["sin"]
    widths = (named[f"{width}_hidden_size"] for width in ("q", "kv", "kv"))
    parts = tuple(x.new_empty((len(x), width)) for width in widths)
    squares = _wide(x, (len(x), 2))
    _record(torch, "triton._split_qkv_and_compute_local_qk_var_kernel", (x, *parts, squares))
    weights = named["q_weight"], named["k_weight"]
    applied = (*parts[:2], cos, sin, cos.stride(0), *weights, squares)
    _record(torch, "triton._apply_global_rmsnorm_kernel", applied)
    return parts


def _of_wheel() -> dict[str, Callable[[Any, dict[str, Any]], Any]]:
    """Return the operators of the extension by the schemas of its wheels."""
    schemas: dict[str, str] = {}
    for release in _RELEASES:
        text = (_WHEELS / f"vllm_ascend-{release}.txt").read_text()
        lines = (line for line in text.splitlines() if not line.endswith("-> Any"))  # of Python
        found = {line.partition("(")[0]: line for line in lines}
        schemas = found | schemas
    return {schemas[name]: gives for name, gives in _OF_EXTENSION.items()}


def _plan(lengths: Any) -> Any:
    """Return the division of an attention among the cores: 1024 numbers."""
    return lengths.new_empty((1024,))


def _streams_read(torch: Any, x: Any) -> Any:
    """Return a block's input, the weights of its output, and those of the streams."""
    *tokens, streams, size = x.shape
    shapes = (*tokens, streams), (*tokens, streams, streams)
    weights = (x.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return x.new_empty((*tokens, size)), *weights


def _indexed(torch: Any, named: dict[str, Any]) -> Any:
    """Return this many positions for each token; a default is not among the keywords."""
    shape = len(named["query"]), 1, named.get("sparse_count", 2048)
    return named["query"].new_empty(shape, dtype=torch.int32)


def _states(torch: Any, named: dict[str, Any]) -> Any:
    """Return a state before each chunk, new values, and a last state of each request."""
    keys, values = named["k"].shape[3], named["u"].shape
    shape = (1, values[1], len(named["chunk_indices"]) // 2, keys, values[3])
    u, state = named["u"], named["initial_state"]
    return named["k"].new_empty(shape), torch.empty_like(u), torch.empty_like(state)


def _routed(torch: Any, named: dict[str, Any]) -> Any:
    """Return rows in the order of experts, their positions, counts, and a number for each row."""
    x, rows = named["x"], named["expert_idx"].numel()
    dtype = x.dtype if named["quant_mode"] == -1 else torch.int8
    return (
        x.new_empty((rows, x.shape[1]), dtype=dtype),
        x.new_empty((rows,), dtype=torch.int32),
        x.new_empty((named["expert_num"],), dtype=torch.int64),
        x.new_empty((rows,), dtype=torch.float32),
    )


def _row_statistics(torch: Any, x: Any, gamma: Any) -> Any:
    """Return one number for each row that gamma covers, its dimensions kept as 1."""
    rows = x.dim() - gamma.dim()
    shape = (*x.shape[:rows], *(1,) * gamma.dim())
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def register(torch: Any, key: str = "PrivateUse1") -> None:
    """Define the operators, for NPUs or another dispatch key of torch, and the modules of the
    functions, in this process."""
    for namespace, schemas in (*_SCHEMAS.items(), ("_C_ascend", _of_wheel())):
        # The library ends with the object: torch keeps its definitions only as long.
        library = torch.library.Library(namespace, "FRAGMENT")
        _KEPT.append(library)
        for schema, gives in schemas.items():
            name, names = schema.split("(")[0], _argument_names(torch, schema)
            library.define(schema)
            is_twice = any(path.endswith(f".{name}") for path in _FUNCTIONS)
            recorded = f"{namespace}.{name}" if is_twice else name
            library.impl(name, _recorded(torch, recorded, names, gives), key)
    for path, function in _FUNCTIONS.items():
        _place(torch, path, function)


_KEPT: list[Any] = []


def _argument_names(torch: Any, schema: str) -> list[str]:
    return [argument.name for argument in torch._C.parse_schema(schema).arguments]


def _recorded(
    torch: Any, name: str, names: Sequence[str], gives: Callable[[Any, dict[str, Any]], Any]
) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **named}
        _record(torch, name, tuple(given.get(each) for each in names))
        return gives(torch, given)

    return call


def get_ascend_config() -> Any:
    """Return the configuration, by the name that vLLM-Ascend's own functions know."""
    return _CONFIG


def _counts(like: Any, shape: tuple[int, ...]) -> Any:
    return like.new_empty(shape, dtype=importlib.import_module("torch").int32)


def _place(torch: Any, path: str, function: Callable[..., Any]) -> None:
    """Define the function in a module of its path, making missing packages."""
    module_name, name = path.rsplit(".", 1)
    parts = module_name.split(".")
    for depth in range(1, len(parts) + 1):
        known = ".".join(parts[:depth])
        try:
            importlib.import_module(known)
        except ImportError:
            sys.modules[known] = module = types.ModuleType(known)
            module.__path__ = []
            module.__spec__ = ModuleSpec(known, None)  # needed by a plain search for the module
            if depth > 1:
                setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], module)

    def call(*args: Any, **named: Any) -> Any:
        _record(torch, name, (*args, *named.values()))
        return function(*args, **named)

    setattr(sys.modules[module_name], name, call)


def _record(torch: Any, name: str, arguments: tuple[Any, ...]) -> None:
    CALLS.append((name, arguments))
    write = _fake_recorder()
    if write is not None:
        texts = ", ".join(_text(torch, argument) for argument in arguments)
        write(f"CUSTOM {name}({texts})".encode())


@cache
def _fake_recorder() -> Callable[[bytes], Any] | None:
    """Return the fake CANN's own function; None if another CANN or none is loaded."""
    try:
        library = ctypes.CDLL(_RUNTIME, mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        return None
    return getattr(library, _RECORD, None)


def _text(torch: Any, argument: Any) -> str:
    """Return an argument as the fake CANN writes those of its calls."""
    if isinstance(argument, torch.Tensor):
        shape = ",".join(map(str, argument.shape))
        dtype = str(argument.dtype).removeprefix("torch.")
        return f"{_SHORT.get(dtype, dtype)}[{shape}]:{_format(argument)}"
    if isinstance(argument, types.SimpleNamespace):  # what a method reads of its object
        return ", ".join(_text(torch, value) for value in vars(argument).values())
    if argument is None:
        return "0"
    return f'"{argument}"' if isinstance(argument, str) else str(argument)


def _format(tensor: Any) -> str:
    torch_npu = sys.modules.get("torch_npu")
    number = torch_npu.get_npu_format(tensor) if torch_npu and tensor.is_npu else _ND
    return _FORMATS.get(number, f"FORMAT_{number}")
