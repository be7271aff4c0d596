"""Slots of a row that are not a separate tensor in the recorded call, and why.

aclnn takes small tables from the host, updates given tensors, and converts inputs to the dtype of
its kernel: the profile shows the kernel's side, the record the caller's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class How(StrEnum):
    """How a slot reaches the kernel. Each is searched in the call, except for the last one."""

    INTS = "an array of the host with as many numbers"
    NUMBER = "a number of the host"
    UPDATED = "the tensor of an input, which is updated"
    DTYPE = "a tensor of this shape in another dtype"
    ELSEWHERE = "it is not in the call"


@dataclass(frozen=True, slots=True)
class Way:
    """How a slot is passed, and the reason."""

    how: How
    why: str


def _each(kernels: str, slots: str, how: How, why: str) -> Iterator[tuple[str, str, Way]]:
    """`slots`: i1 is the first input, o1 the first output."""
    for kernel in kernels.split():
        for slot in slots.split():
            yield kernel, slot, Way(how, why)


_REDUCTIONS = "ReduceAll ReduceAny ReduceMax ReduceMean ReduceMin ReduceSum"
_WAYS = (
    *_each(_REDUCTIONS, "i2", How.INTS, "the dimensions"),
    *_each("ArgMaxWithValue", "o1", How.DTYPE, "aclnn casts the kernel's INT32"),
    *_each("LayerNormV3", "o2 o3", How.DTYPE, "aclnn casts the kernel's, of gamma's dtype"),
    *_each("DropOutDoMask", "i3", How.ELSEWHERE, "what is kept: one less what is dropped"),
    *_each("DSAGenBitMask DSAStatelessGenBitMask", "i1 i3", How.ELSEWHERE, "numbers"),
    *_each("DSAStatelessGenBitMask", "i4", How.ELSEWHERE, "a number of the host"),
    *_each("Tile", "i2", How.INTS, "how often each dimension repeats"),
    *_each("PadV3", "i2", How.INTS, "the paddings"),
    *_each("FusedInferAttentionScore PromptFlashAttention", "i6 i7", How.INTS, "sequence lengths"),
    *_each("IncreFlashAttention", "i6", How.INTS, "sequence lengths"),
    *_each("Cumsum", "i2", How.NUMBER, "the dimension"),
    *_each("GatherV3", "i3", How.NUMBER, "the dimension"),
    *_each("GatherV2", "i3", How.ELSEWHERE, "the dimension, which is the first of an embedding"),
    *_each("IndexFill", "i3", How.NUMBER, "the value"),
    *_each("MaskedFill", "i3", How.NUMBER, "the value"),
    *_each("Fill", "i1", How.ELSEWHERE, "the shape is the updated tensor's"),
    *_each("ViewCopy", "i2 i3 i4 i6 i7 i8", How.ELSEWHERE, "of the views themselves"),
    *_each("ViewCopy", "o1", How.UPDATED, ""),
    *_each("AsStrided", "i2 i3 i4", How.ELSEWHERE, "sizes, strides and offset are the view's"),
    *_each("Transpose", "i2", How.ELSEWHERE, "the order of dimensions is in the view's strides"),
    *_each("BroadcastTo", "i2", How.ELSEWHERE, "the shape is the updated tensor's"),
    *_each("BroadcastTo", "i1", How.ELSEWHERE, "the view's strides say what repeats: 0"),
    *_each("Index", "i2 i3", How.ELSEWHERE, "which dimensions are indexed, and their sizes"),
    *_each("IndexPutV2", "i3 i4", How.ELSEWHERE, "which dimensions are indexed, and their sizes"),
    *_each("ApplyTopKTopPWithSorted", "i2", How.ELSEWHERE, "aclnn sorts and keeps the order"),
    *_each("ApplyTopKTopPCustom", "i2", How.ELSEWHERE, "the library sorts and keeps the order"),
    *_each("EmbeddingDenseGradV2", "i3", How.ELSEWHERE, "aclnn sorts the indices itself"),
    *_each("MatMulV2 MatMulV3", "i3", How.DTYPE, "the bias is converted to FLOAT"),
    *_each("QuantBatchMatmulV3", "i3", How.ELSEWHERE, "packed with the offset, and as wide as it"),
    *_each("QuantBatchMatmulV4 WeightQuantBatchMatmulV2", "i2", How.ELSEWHERE, "INT4 in INT32"),
    *_each("QuantBatchMatmulV4", "i5", How.DTYPE, "packed INT64, which aclnn calls UINT64"),
    *_each("GroupedMatmul", "i2", How.ELSEWHERE, "eight INT4 numbers in each INT32 of the call"),
    *_each("GroupedMatmul", "i4", How.DTYPE, "packed INT64, which aclnn calls UINT64"),
    *_each("GroupedMatmulSwigluQuant", "i2", How.ELSEWHERE, "the weight is always FRACTAL_NZ"),
    *_each("GroupedMatmulSwigluQuant", "i3", How.DTYPE, "packed INT64, which aclnn calls UINT64"),
    *_each("GroupedMatmulSwigluQuantV2", "i4", How.ELSEWHERE, "eight INT4 numbers in each INT32"),
    *_each("GroupedMatmulSwigluQuantV2", "i5", How.DTYPE, "packed INT64, which aclnn calls UINT64"),
    *_each("split_qkv_rmsnorm_rope_kernel", "i2", How.ELSEWHERE, "a table of the positions"),
    *_each("ArgMaxV2", "o1", How.DTYPE, "the kernel writes INT32, aclnn casts to INT64"),
    *_each("TopKV2", "o2", How.DTYPE, "the kernel writes INT32, aclnn casts to INT64"),
    *_each("ReverseV2", "i2", How.INTS, "the dimensions"),
    *_each("Sort", "o2", How.DTYPE, "the kernel writes INT32, aclnn casts to INT64"),
    *_each("HistogramV2", "o1", How.DTYPE, "the kernel writes INT32, aclnn casts"),
    *_each("NonZero", "o1", How.ELSEWHERE, "as many rows are made as there are elements"),
    *_each("LightningIndexer", "o2", How.ELSEWHERE, "values are not requested"),
    *_each("CausalConv1d", "i5 i6 i7", How.ELSEWHERE, "lists of the host"),
    *_each("ChunkGatedDeltaRuleFwdH ChunkFwdO", "i6 i7", How.ELSEWHERE, "lists of the host"),
    *_each("triton_rms_kernel", "i1", How.ELSEWHERE, "heads of one size are rows to the kernel"),
    *_each(
        "_causal_conv1d_update_kernel_npu_tiled", "i1 i2 i4", How.ELSEWHERE, "views, turned about"
    ),
    *_each("sample_recovered_tokens_kernel", "i4", How.ELSEWHERE, "the function draws them"),
    *_each("chunk_scaled_dot_kkt_fwd_kernel", "i2 i3", How.ELSEWHERE, "heads come first"),
    *_each("recompute_w_u_fwd_kernel", "i3 i5", How.ELSEWHERE, "heads come first"),
    *_each("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "i4", How.ELSEWHERE, "the same"),
    *_each("chunk_fwd_kernel_o", "i5", How.ELSEWHERE, "heads come first"),
    *_each("chunk_fwd_kernel_o", "i7", How.ELSEWHERE, "the function counts the chunks itself"),
    *_each("RecurrentGatedDeltaRule", "i6", How.ELSEWHERE, "CANN's function takes no start"),
    *_each("RecurrentGatedDeltaRule", "o2", How.UPDATED, ""),
    *_each("OnesLike RandomUniform ZerosLike", "o1", How.UPDATED, ""),
    *_each("MaskedFill IndexFill IndexPutV2 ScatterElementsV2", "o1", How.UPDATED, ""),
    *_each("ScatterNdUpdate", "o1", How.UPDATED, ""),
    *_each("InplaceAddRmsNorm", "o1 o3", How.UPDATED, ""),
    *_each("ApplyRotaryPosEmb KvRmsNormRopeCache ScatterPaKvCache", "o1 o2", How.UPDATED, ""),
    *_each("GatherPaKvCache PagedCacheLoadNdKernel", "o1 o2", How.UPDATED, ""),
    *_each("MlaPrologV2 MlaPrologV3", "o3 o4", How.UPDATED, ""),
)


def _by_kernel() -> Mapping[str, Mapping[str, Way]]:
    table: dict[str, dict[str, Way]] = {}
    for kernel, slot, way in _WAYS:
        table.setdefault(kernel, {})[slot] = way
    return MappingProxyType(table)


PASSED_OTHERWISE = _by_kernel()

# Calls besides the kernel's own that a launch makes, and why they are needed.
_CONVERSIONS = frozenset({"TransData"})
COMPANIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "ApplyAdamWV2": frozenset({"aclnnSubs"}),  # torch counts the step before, aclnn after it
        # a pass is of two kernels
        "BNTrainingReduce": frozenset({"BNTrainingUpdate"}),
        "BNTrainingReduceGrad": frozenset({"BNTrainingUpdateGrad"}),
        "BNTrainingUpdate": frozenset({"BNTrainingReduce"}),
        "Conv2D": _CONVERSIONS,
        "Conv2DBackpropInput": _CONVERSIONS,
        # autograd needs the gradient in separate memory
        "Conv2DBackpropFilter": _CONVERSIONS | {"aclnnInplaceCopy"},
        "LayerNormV3": frozenset({"aclnnInplaceCopy"}),  # statistics in the dtype of the row
        # a function of Python, which launches two kernels
        "solve_tril_16x16_kernel": frozenset(
            {"solve_tril", "triton.merge_16x16_to_64x64_inverse_kernel"}
        ),
        "merge_16x16_to_64x64_inverse_kernel": frozenset(
            {"solve_tril", "triton.solve_tril_16x16_kernel"}
        ),
        **dict.fromkeys(
            (
                "rejection_greedy_sample_spec_len_1_triton",
                "rejection_greedy_sample_triton",
                "rejection_random_sample_kernel",
                "rejection_random_sample_block_verify_kernel",
            ),
            frozenset({"rejection_sample"}),
        ),
        "copy_and_expand_dflash_inputs_kernel_single_grid": frozenset({"set_inputs_first_pass"}),
        "l2norm_fwd_kernel2": frozenset({"l2norm_fwd"}),
        "l2norm_fwd_kernel2_loop": frozenset({"l2norm_fwd"}),
        "_split_qkv_and_compute_local_qk_var_kernel": frozenset(
            {"split_qkv_tp_rmsnorm_rope", "triton._apply_global_rmsnorm_kernel"}
        ),
        "_apply_global_rmsnorm_kernel": frozenset(
            {"split_qkv_tp_rmsnorm_rope", "triton._split_qkv_and_compute_local_qk_var_kernel"}
        ),
        "HistogramV2": frozenset({"aclnnInplaceCopy"}),  # the output in the dtype of the input
        "IndexPutV2": frozenset({"aclnnInplaceCopy"}),  # an index that follows a whole axis
        "MatMulV2": _CONVERSIONS,  # operands that CANN reads inefficiently in this layout
        "MaxPoolGradWithArgmaxV1": _CONVERSIONS,
        "MaxPoolWithArgmaxV1": _CONVERSIONS,
        # what is launched for one of its conversions
        "TransData": _CONVERSIONS
        | {"Conv2D", "Conv2DBackpropFilter", "MaxPoolWithArgmaxV1", "aclnnInplaceCopy"},
    }
)
