"""What the recorded calls of a serving engine's operators launch, routing, rotary positions,
caches and sampling: the OP Type that msprof prints.

A call of a later version (V2, V4) is assumed to launch the kernel of its name without the version,
or with the last one that a profile of vLLM-Ascend 0.18 names. Several calls launch more than one
kernel, the sorts of permutations and of top-k among them: only the one named for it is here.
"""

from collections.abc import Callable
from typing import Any

# published statistics of DeepSeek-V4.1 on A3
SEEN = (
    *("npu_scatter_nd_update_sk", "npu_sparse_flash_mla", "npu_quant_lightning_indexer_v2"),
    "npu_rms_norm_cast",
)
READ = ("aclnnMlaPrologV3WeightNz",)
KERNELS: dict[str, str | Callable[..., Any]] = {
    "aclnnRotaryPositionEmbeddingV2": "RotaryPositionEmbedding",
    "aclnnRotaryPositionEmbeddingGrad": "RotaryPositionEmbeddingGrad",
    "aclnnInterleaveRope": "InterleaveRope",
    "aclnnRopeWithSinCosCacheV2": "RopeWithSinCosCache",
    "aclnnApplyRotaryPosEmbV2": "ApplyRotaryPosEmb",
    "aclnnKvRmsNormRopeCache": "KvRmsNormRopeCache",
    "ReshapeAndCacheParam": "ReshapeAndCacheNdKernel",
    "AtbPagedCacheLoad": "PagedCacheLoadNdKernel",
    "aclnnScatterPaKvCache": "ScatterPaKvCache",
    "aclnnMoeTokenPermute": "MoeTokenPermute",
    "aclnnMoeTokenUnpermute": "MoeTokenUnpermute",
    "aclnnMoeGatingTopK": "MoeGatingTopK",
    "aclnnMoeGatingTopKSoftmax": "MoeGatingTopKSoftmax",
    "aclnnMoeInitRoutingV3": "MoeInitRoutingV3",
    "aclnnMoeFinalizeRoutingV4": "MoeFinalizeRoutingV2",
    "aclnnMoeReRouting": "MoeReRouting",
    "aclnnMoeComputeExpertTokens": "MoeComputeExpertTokens",
    "aclnnMoeDistributeDispatchV4": "MoeDistributeDispatchV2",
    "aclnnMoeDistributeCombineV4": "MoeDistributeCombineV2",
    "aclnnApplyTopKTopP": "ApplyTopKTopPWithSorted",
    "npu_rotary_embedding": "_triton_rope",
    "rope_forward_triton_siso": "_triton_rope_siso",
    "qkv_rmsnorm_rope": "split_qkv_rmsnorm_rope_kernel",
    "muls_add": "muls_add_kernel",
    "triton_split_qkv_rmsnorm_mrope": "split_qkv_rmsnorm_mrope_kernel",
    "split_qkv_tp_rmsnorm_rope": "",  # two kernels, which are recorded by their own names
    "npu_apply_top_k_top_p": "ApplyTopKTopPCustom",
    "npu_lightning_indexer": "LightningIndexerVllm",
    "npu_lightning_indexer_quant": "LightningIndexerQuant",
    "npu_moe_init_routing_custom": "MoeInitRoutingCustom",
    "aclnnMlaPrologV2WeightNz": "MlaPrologV2",
    "aclnnMlaPrologV3WeightNz": "MlaPrologV3",
    "mla_preprocess": "mla_preprocess_0_mix_aic",
    "npu_hc_pre_v2": "HcPre",
    "npu_hc_post": "HcPost",
    "inplace_partial_rotary_mul": "InplacePartialRotaryMul",
    "npu_rms_norm_dynamic_quant": "RmsNormDynamicQuant",
    "npu_rms_norm_cast": "RmsNormCast",
    "npu_scatter_nd_update_v2": "ScatterNdUpdateV2",
    "compute_slot_mapping": "_compute_slot_mapping_kernel",
    "_apply_all_penalties_triton": "apply_all_penalties_kernel",
    "get_token_bin_counts_and_mask_triton": "token_bin_counts_and_mask_kernel",
    "expand_batch_to_tokens": "expand_kernel",
    "rejection_sample": "",  # several kernels, which are recorded by their own names
    "sample_recovered_tokens": "sample_recovered_tokens_kernel",
    "prepare_inputs_padded": "prepare_inputs_padded_kernel",
    "set_inputs_first_pass": "",  # its kernel is recorded by its own name
    "npu_scatter_nd_update_sk": "ScatterNdUpdateSk",
    "moe_gating_top_k_hash": "MoeGatingTopKHash",
    "compressor": "Compressor",
    "compressor_metadata": "CompressorMetadata",
    "npu_vllm_quant_lightning_indexer": "VllmQuantLightningIndexer",
    "npu_quant_lightning_indexer_v2": "QuantLightningIndexerV2",
    "npu_sparse_attn_sharedkv": "SparseAttnSharedkv",
    "npu_sparse_flash_mla": "SparseFlashMla",
    "npu_fused_gdn_gating": "FusedGdnGating",
    "npu_causal_conv1d_custom": "CausalConv1d",
    # of the extension; functions of Python have the same names
    "_C_ascend.chunk_gated_delta_rule_fwd_h": "ChunkGatedDeltaRuleFwdH",
    "_C_ascend.chunk_fwd_o": "ChunkFwdO",
    # functions of vLLM-Ascend that launch a Triton kernel
    "fused_sigmoid_gating_delta_rule_update": "fused_sigmoid_gating_delta_rule_update_kernel",
    "fused_gdn_gating_patch": "fused_gdn_gating_kernel",
    "fused_qkvzba_split_reshape_cat": "fused_qkvzba_split_reshape_cat_kernel",
    "layer_norm_fwd_npu": "_layer_norm_fwd_1pass_kernel_npu",
    "l2norm_fwd": "",  # of vLLM and of vLLM-Ascend; their kernels are recorded by their own names
    "swiglu_quant": "_swiglu_quant_kernel",
    "triton_q_rms": "triton_rms_kernel",
    "causal_conv1d_update_npu": "_causal_conv1d_update_kernel_npu_tiled",
    "clear_ssm_states": "_clear_ssm_states_kernel",
    "chunk_local_cumsum": "chunk_local_cumsum_scalar_kernel",
    "chunk_scaled_dot_kkt_fwd": "chunk_scaled_dot_kkt_fwd_kernel",
    "recompute_w_u_fwd": "recompute_w_u_fwd_kernel",
    "chunk_gated_delta_rule_fwd_h": "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    "chunk_fwd_o": "chunk_fwd_kernel_o",
    "solve_tril": "",  # two kernels, which are recorded by their own names
}
