"""Fixture rows that a profile of their own recorded call would not show: cells of the kernel that
are unknown, or that differ. On an NPU such a row is `unverified` in the first case, and
`substituted` in the second.
"""

from collections.abc import Mapping
from types import MappingProxyType

_VIEW = "the copy reads a view, and what the kernel is given of it is not known"
_RETURNED = "the function returns its outputs, so that the record does not hold them"

# Kernels whose recorded call does not have all cells, in some rows or in every one.
INCOMPLETE: Mapping[str, str] = MappingProxyType(
    {
        "AsStrided": _VIEW,
        **dict.fromkeys(
            (
                *("LightningIndexerQuant", "LightningIndexerVllm", "MoeInitRoutingCustom"),
                *("AddRmsNormBias", "ApplyTopKTopPCustom", "_triton_rope", "_triton_rope_siso"),
                *("muls_add_kernel", "split_qkv_rmsnorm_rope_kernel"),
                *("HcPost", "HcPre", "InplacePartialRotaryMul", "RmsNormCast"),
                *("MoeGatingTopKHash", "RmsNormDynamicQuant", "ScatterNdUpdateSk"),
                *(
                    "ScatterNdUpdateV2",
                    "Compressor",
                    "CompressorMetadata",
                    "QuantLightningIndexerV2",
                ),
                *("SparseAttnSharedkv", "SparseFlashMla", "VllmQuantLightningIndexer"),
                *("FusedGdnGating", "CausalConv1d", "ChunkGatedDeltaRuleFwdH", "ChunkFwdO"),
                *("fused_sigmoid_gating_delta_rule_update_kernel", "fused_gdn_gating_kernel"),
                *("fused_qkvzba_split_reshape_cat_kernel", "_layer_norm_fwd_1pass_kernel_npu"),
                *("split_qkv_rmsnorm_mrope_kernel", "_compute_slot_mapping_kernel"),
                *("apply_all_penalties_kernel", "token_bin_counts_and_mask_kernel"),
                *("expand_kernel", "prepare_inputs_padded_kernel", "_swiglu_quant_kernel"),
                "sample_recovered_tokens_kernel",
                *("triton_rms_kernel", "_causal_conv1d_update_kernel_npu_tiled"),
                *("chunk_local_cumsum_scalar_kernel", "chunk_scaled_dot_kkt_fwd_kernel"),
                "_clear_ssm_states_kernel",
                *("recompute_w_u_fwd_kernel", "chunk_fwd_kernel_o"),
                "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
            ),
            _RETURNED,
        ),
        **dict.fromkeys(
            ("DSAGenBitMask", "DSAStatelessGenBitMask"),
            "count, seed, share and offset are numbers of the host",
        ),
        "AttentionUpdate": "what it shows where no second output is requested is not known",
        "EmbeddingDenseGradV2": "aclnn sorts the indices itself, and flattens them",
        "FlashAttentionScore": "a row of fifteen inputs, of which the call has seven",
        "FlashAttentionScoreGrad": "as the forward pass",
        "NonZero": "as many rows are made as there are elements",
    }
)

# Rows by their number in the fixture table, from 0, that differ from those of their kernel.
DIFFERENT: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "BroadcastTo": dict.fromkeys((1, 2, 3), "a copy adds the leading dimensions"),
        "Transpose": {1: "a copy gives the kernel no dimension of one element"},
        "ArgMaxV2": {3: "the kernel has a dimension, and writes INT32"},
        "Cumsum": {1: "the dimension is INT64 to the kernel", 3: "the same"},
        "GroupedMatmulSwigluQuant": {0: "the weight is always FRACTAL_NZ"},
        "LightningIndexer": {0: "values are not requested", 1: "the same"},
        "MaskedFill": {2: "the value is a scalar of the row"},
        "MoeGatingTopK": {1: "the third output has its shape", 2: "the same"},
        "PadV3": {2: "the value is a scalar of the row"},
        "RINGMLAPrefillBF16Kernel": {0: "statistics are always returned", 3: "the same"},
        "RecurrentGatedDeltaRule": {
            2: "lengths after a start are those of vLLM-Ascend's function",
            3: "the same",
        },
        "QuantBatchMatmulV3": {5: "scale and offset are packed into one"},
    }
)
