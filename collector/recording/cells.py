"""The shapes, dtypes and formats that msprof prints of a recorded call: those of its kernel.

What aclnn is called with is not what its kernel is: tables of the host become tensors, a weight
that is a transposed view is the tensor as it lies, what is updated is an output too. How each call
is turned into a kernel's slots is in `_LAYOUTS`; of a call that is not there the tensors are
the slots, outputs last. `?` means unknown, and msprof prints N/A.

    aclnnIndexSelect(f32[20,6]:ND, 0, i64[5]:ND, f32[5,6]:ND)     "0 2 [1]:INT64 -> 3"
    Input Shapes "20,6;5;1"   Output Shapes "5,6"

A layout names arguments by position: `3` (a list is all its tensors), `-1` from the end, `3T` as
it lies in memory, `3M` the same of each matrix in a batch, `3P` as `3T` with INT32 as eight INT4,
`3S` as `3T` with INT64 as the UINT64 of packed scales, `3V` as it is seen in any format, `3R` as
rows, `3F` in one dimension, `3:INT32` of another dtype, `3@5` empty where argument 5 is 0,
`#3:INT64` a tensor of as many numbers as the array has, `[1]:INT64` one of that shape, `3[1]`
argument 3 in that shape, `.:FLOAT` a number of the host as a scalar, `.=0` one of argument 0's
dtype, `n1:INT64` one number for each tensor of a list, and `r0:INT64` one for each dimension of a
tensor.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from collector.model.vocabulary import is_plain_format
from collector.recording.calls import Recorded, RecordedTensor, parse_tensor
from collector.recording.kernel_tables.movement import copied, dense_steps

UNKNOWN = "?"
_NIBBLES = 64  # in a line of a block of INT4, however torch has them packed
_TOKEN = re.compile(
    r"(?P<kind>[#nr.]?)(?P<place>-?\d+)?(?:\[(?P<shape>[\d,]+)\])?(?P<lies>[TMPVRFS])?"
    r"(?:@(?P<unless>\d+))?(?:=(?P<like>\d+))?(?::(?P<dtype>\w+))?"
)
_LAYOUTS: Mapping[str, str] = MappingProxyType(
    {
        "aclnnMm": "0T 1T -> 2",
        "aclnnBatchMatMul": "0M 1M -> 2",
        **dict.fromkeys(
            ("aclnnDispatchFFNCombine", "aclnnDispatchFFNCombineBF16"), "0 1V 2V 3 4 5 6 -> -2 -1"
        ),
        "aclnnMatmulWeightNz": "0T 1 -> 2",
        "aclnnAddmm": "1T 2T 0:FLOAT -> 5",
        "aclnnAddmmWeightNz": "1T 2 0:FLOAT -> 5",
        "aclnnWeightQuantBatchMatmulV2": "0 1P 2 3 4 5 6 -> -1",
        "aclnnGroupedMatmulV4": "0 1P 2 3S 4 5 6 8 7 -> 16",
        "aclnnGroupedMatmulV5": "0 1P 2 3S 4 5 6 8 7 -> 17",
        "aclnnGroupedMatmulWeightNz": "0 1P 2 3S 4 5 6 8 7 -> 18",
        "aclnnGroupedMatmulSwigluQuantV2": "0 5 7 1P 2S 3 -> -2 -1",
        "aclnnGroupedMatmulSwigluQuantWeightNzV2": "0 5 7 1P 2S 3 -> -2 -1",
        "aclnnAddLayerNorm": "0 1 2 3 4 -> 6 7 8 9@5",
        "aclnnGemmaRmsNorm": "0 1 -> 2 3",
        "aclnnRopeWithSinCosCacheV2": "0 1 2 3 -> 8 9",
        "aclnnTopkV2": "0 .:INT32 -> 6 7:INT32",
        "aclnnFlip": "0 #1:INT64 -> 2",
        "aclnnRmsNormGrad": "0 1 2 3 -> 4 5",
        "aclnnAddRmsNormBias": "0 1 2 3 -> 4 5 6",
        "triton._triton_rope": "0 2 8 10 -> 0 2",
        "triton.split_qkv_rmsnorm_rope_kernel": "0 4 -> 1 2 3",  # as a profile shows it
        # of the other Triton kernels profiles show no tensors: those of a launch, outputs last
        "triton._apply_global_rmsnorm_kernel": "0 1 2 3 5 6 7 -> 0 1",
        "triton._split_qkv_and_compute_local_qk_var_kernel": "0 -> 1 2 3 4",
        "triton.split_qkv_rmsnorm_mrope_kernel": "0 1 2 3 4 5 -> 6 7 8 9",
        "triton._compute_slot_mapping_kernel": "2 3 4 -> 7",
        "triton.apply_all_penalties_kernel": "0 1 2 3 4 5 6 -> 0",
        "triton.token_bin_counts_and_mask_kernel": "0 -> 6",
        "triton._swiglu_quant_kernel": "0 1 -> 2 3",
        "triton.expand_kernel": "1 2 -> 0",
        "triton.prepare_inputs_padded_kernel": "0 1 2 -> 3 4",
        "triton.rejection_greedy_sample_spec_len_1_triton": "1 2 3 -> 0",
        "triton.rejection_greedy_sample_triton": "1 2 3 4 5 -> 0",
        "triton._causal_conv1d_update_kernel_npu_tiled": "0 1 2 3 4 -> 9 3",
        "triton._layer_norm_fwd_1pass_kernel_npu": "0 2 3 4 -> 1 5 6",
        "triton.chunk_fwd_kernel_o": "0 1 2 3 4 6 7 -> 5",
        "triton.chunk_gated_delta_rule_fwd_kernel_h_blockdim64": "0 1 2 4 6 8 9 -> 5 3 7",
        "triton.chunk_local_cumsum_scalar_kernel": "0 3 4 -> 1",
        "triton.chunk_scaled_dot_kkt_fwd_kernel": "0 1 2 4 5 -> 3",
        "triton.fused_gdn_gating_kernel": "2 3 4 5 -> 0 1",
        "triton.fused_qkvzba_split_reshape_cat_kernel": "4 5 -> 0 1 2 3",
        "triton.fused_sigmoid_gating_delta_rule_update_kernel": ("0 1 2 5 6 7 8 10 11 12 -> 9 10"),
        **dict.fromkeys(("triton.l2norm_fwd_kernel2", "triton.l2norm_fwd_kernel2_loop"), "0 -> 1"),
        "triton.merge_16x16_to_64x64_inverse_kernel": "0 1 3 4 -> 2",
        "triton.recompute_w_u_fwd_kernel": "0 1 2 5 6 7 8 -> 3 4",
        "triton.solve_tril_16x16_kernel": "0 2 3 -> ?",  # the function does not return it
        "triton.triton_rms_kernel": "0 -> 2",
        "aclnnChunkGatedDeltaRuleFwdH": "0 1 2 3 5 #9:INT64 #10:INT64 -> -3 -2 -1",
        "aclnnChunkFwdO": "0 1 2 3 4 #5:INT64 #6:INT64 -> -1",
        "aclnnRecurrentGatedDeltaRule": "0 1 2 3 4 5 6 7 8 9 -> 10 4",
        "aclnnFusedGdnGating": "0 1 2 3 -> -2 -1",
        "aclnnAddRmsNormDynamicQuantV2": "0 1 2 3 4 5 -> 7 8 9 10 11",
        "aclnnAddRmsNormQuantV2": "0 1 2 3 4 5 6 7 -> 10 11 12",
        "aclnnInplaceAddRmsNorm": "0 1 2 -> 0 3 1",
        "aclnnApplyAdamWV2": "0 1 2 4 5 -> 0 1 2",
        "aclnnApplyRotaryPosEmbV2": "0 1 2 3 -> 0 1",
        "aclnnRotaryPositionEmbeddingGrad": "0 1 2 3 -> 5 6@3 7@3",
        "aclnnMlaPrologV2WeightNz": f"{' '.join(map(str, range(19)))} -> 20 21 10 11 22",
        "aclnnMlaPrologV3WeightNz": f"{' '.join(map(str, range(21)))} -> 28 29 9 10 30 31 32",
        "aclnnKvRmsNormRopeCache": "0 1 2 3 4 5 6 -> 5 6 13 14",
        **dict.fromkeys(("aclnnApplyTopKTopP", "aclnnApplyTopKTopPCustom"), "0 0:INT32 1 2 -> 3"),
        "aclnnArgMax": "0 .:INT64 -> 3:INT32",
        "aclnnMaxDim": "0 -> 4:INT32 3",
        "aclnnSort": "0 -> 4 5:INT32",
        "aclnnDequantSwigluQuantV2": "0 1 2 3 4 5 6 -> 13 14",
        "aclnnFusedInferAttentionScoreV3": (
            f"0 1 2 3 4 #5:INT64 #6:INT64 {' '.join(map(str, range(7, 27)))} -> -2 -1"
        ),
        "aclnnFusedInferAttentionScoreV4": (
            f"0 1 2 3 4 #5:INT64 #6:INT64 {' '.join(map(str, range(7, 29)))} -> -2 -1"
        ),
        "aclnnIncreFlashAttentionV4": "0 1 2 3 4 #5:INT64 6 7 8 9 10 11 12 13 14 15 -> -1",
        "aclnnPromptFlashAttentionV3": "0 1 2 3 4 #5:INT64 #6:INT64 -> -1",
        "aclnnSparseFlashAttention": "0 1 2 3 4 5 6 7 8 -> -3",
        "aclnnKvQuantSparseFlashAttention": "0 1 2 3 4 5 6 7 8 -> -1",
        "aclnnLightningIndexer": "0 1 2 3 4 5 -> 13 14",
        "aclnnAttentionUpdate": "0 1 -> 3 ?",
        "aclnnScatterPaKvCache": "0 1 2 3 4 -> 1 4",
        "aclnnGatherPaKvCache": "0 1 2 3 4 5 6 -> 4 5",
        **dict.fromkeys(("aclnnScatterNdUpdate", "aclnnScatterNdUpdateV2"), "0 1 2 -> 0"),
        "aclnnInplacePartialRotaryMul": "0 1 2 -> 0",
        "aclnnHcPre": "0 1 2 3 -> -3 -2 -1",
        "aclnnCompressor": "0 1 2 3 4 5 6 7 8 9 10 11 -> -1 3",
        "aclnnCompressorMetadata": "0 1 2 3 4 -> -3 -2 -1",
        "aclnnSparseAttnSharedkv": f"{' '.join(map(str, range(14)))} -> -2 -1",
        "aclnnVllmQuantLightningIndexer": "0 1 2 3 4 5 6 7 8 -> -2 -1",
        "aclnnMoeGatingTopKHash": "0 1 2 3 -> -3 -2 -1",
        "aclnnRmsNormDynamicQuant": "0 1 2 3 4 -> -4 -3 -2 -1",
        "AtbPagedCacheLoad": "0 1 2 3 4 5 6 -> 4 5",
        "aclnnMoeDistributeDispatchV4": "0 1 2 3 4 -> -7 -6 -5 -4 -3 -2 -1",
        "aclnnMoeDistributeCombineV4": "0 1 2 3 4 5 6 7 8 9 10 -> -1",
        "aclnnMoeFinalizeRoutingV4": "0 1 2 3 4 5 6 -> -1",
        "aclnnMoeGatingTopK": "0 1 -> 9 10 11",
        "aclnnMoeGatingTopKSoftmax": "0 1 -> 3 4 5",
        "aclnnMoeInitRoutingCustom": "0 1 2 3 -> -4 -3 -2 -1",
        "aclnnMoeInitRoutingV3": "0 1 2 3 -> -4 -3 -2 -1",
        "aclnnMoeReRouting": "0 1 2 -> 5 6 7 8",
        "aclnnMoeTokenPermute": "0 1 -> 4 5",
        **dict.fromkeys(("aclnnAll", "aclnnAny", "aclnnAmax", "aclnnAmin"), "0 #1:INT64 -> -1"),
        **dict.fromkeys(("aclnnMean", "aclnnReduceSum", "aclnnRepeat"), "0 #1:INT64 -> -1"),
        "aclnnClamp": "0 .=0 .=0 -> 3",
        **dict.fromkeys(("aclnnEqScalar", "aclnnNeScalar"), "0 .=0 -> 2"),
        **dict.fromkeys(("aclnnGeScalar", "aclnnGtScalar", "aclnnLtScalar"), "0 .=0 -> 2"),
        "aclnnAdds": "0 .=0 -> 3",
        "aclnnFloorDivides": "0 .=0 -> 2",
        "aclnnInplaceAdds": "0 .=0 -> 0",
        "aclnnSubs": "0 .=0 -> 3",
        "aclnnDropoutDoMask": "0 1 [1]:FLOAT -> 2",
        "aclnnForeachAddListV2": "0 1 .:FLOAT -> -1F",
        "aclnnForeachAddScalarV2": "0 .:FLOAT -> -1F",
        "aclnnForeachSubListV2": "0 1 .:FLOAT -> -1F",
        "aclnnForeachMulScalarV2": "0 .:FLOAT -> -1F",
        "aclnnForeachMulList": "0 1 -> -1F",
        "aclnnForeachDivScalarV2": "0 .:FLOAT -> -1F",
        "aclnnForeachDivList": "0 1 -> -1F",
        "aclnnForeachSqrt": "0 -> -1F",
        "aclnnForeachNeg": "0 -> -1F",
        "aclnnForeachLerpScalar": "0 1 .:FLOAT -> -1F",
        "aclnnForeachAddcmulScalarV2": "0 1 2 .:FLOAT -> -1F",
        "aclnnForeachAddcdivScalarV2": "0 1 2 .:FLOAT -> -1F",
        "aclnnCumsum": "0 [1]:INT64 -> 3",
        "aclnnEmbedding": "0 1 [1]:INT64 -> 2",
        "aclnnIndexSelect": "0 2 [1]:INT64 -> 3",
        "aclnnInplaceFillScalar": "r0:INT64 .=0 -> 0",
        "aclnnHistc": "0 .=0 .=0 -> 4:INT32",
        "aclnnInplaceIndexFill": "0 2 .=0 -> 0",
        "aclnnIndexPutImpl": "0 2 n1:INT64 n1:INT64 1 -> 0",
        "aclnnInplaceMaskedFillScalar": "0 1 .=0 -> 0",
        "aclnnNonzero": "0 -> ?",
        "aclnnConstantPadNd": "0 #1:INT32 .=0 -> 3",
        "aclnnArange": ".:DOUBLE .:DOUBLE .:DOUBLE -> 3",
        "aclnnEmbeddingDenseBackward": "? -> -1",
        **dict.fromkeys(("aclnnDropoutGenMask", "aclnnDropoutGenMaskV2"), "? -> -1"),
        "aclnnFlashAttentionScore": "? -> ?",
        "aclnnFlashAttentionScoreGrad": "? -> ?",
        # biases and scales are absent; the last two inputs are what the rounds before found
        "AtbRingMLA": f"0 1 2 3 4 5 {'99 ' * 7}7 8 -> -2 -1",
        "batch_matmul_transpose": "0 1 -> 2",
        "mla_preprocess": (f"0 1V 2 3 4 5V {' '.join(map(str, range(6, 22)))} -> 25 26 27 28 29"),
    }
)
# Calls whose outputs are not the last tensor alone: how many tensors of the end are outputs.
_MORE_OUTPUTS = {
    **dict.fromkeys(("aclnnRmsNorm", "aclnnTopk"), 2),
    **dict.fromkeys(("aclnnDynamicMxQuantV2", "aclnnDynamicMxQuantV3"), 2),
    "aclnnDynamicBlockQuantV2": 2,
    **dict.fromkeys(("aclnnGroupedDynamicBlockQuant", "aclnnGroupedDynamicBlockQuantV2"), 2),
    **dict.fromkeys(("aclnnGroupedDynamicMxQuantV2", "aclnnSwigluMxQuant"), 2),
    **dict.fromkeys(("aclnnAddRmsNorm", "aclnnRmsNormDynamicMxQuant"), 3),
    "aclnnAddRmsNormDynamicMxQuant": 4,
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """The three cells of a slot. A private format shows how the tensor is stored in
    memory, a plain one how it is seen; a tensor of no elements shows no shape."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    format: str = ""

    @classmethod
    def of(cls, tensor: RecordedTensor) -> "_Cell":
        shape = tensor.shape if is_plain_format(tensor.format) else tensor.storage
        return cls(shape, tensor.dtype, tensor.format)

    @property
    def shape_text(self) -> str:
        return "" if 0 in self.shape else ",".join(map(str, self.shape))


_Side = Sequence[_Cell] | None


def cells_by_layout(call: Recorded, layout: str) -> dict[str, str]:
    """The cells of an op_summary's row whose slots are known from elsewhere than `_LAYOUTS`."""
    inputs, outputs = layout.split(" -> ")
    return _texts("Input", _read(inputs, call)) | _texts("Output", _read(outputs, call))


def cells_of(call: Recorded) -> dict[str, str]:
    """The cells of an op_summary's row, by their columns."""
    inputs, outputs = _sides(call)
    return _texts("Input", inputs) | _texts("Output", outputs)


def _sides(call: Recorded) -> tuple[_Side, _Side]:
    chosen = _CHOSEN.get(call.name)
    layout = chosen(call) if chosen else _LAYOUTS.get(call.name) or _stated(call)
    if layout is not None:
        inputs, outputs = layout.split(" -> ")
        return _read(inputs, call), _read(outputs, call)
    if call.kind == "CUSTOM":  # it returns its outputs, so that the call does not hold them
        return None, None
    tensors = [_Cell.of(tensor) for tensor in call.tensors]
    if call.outputs_from is not None:
        count = len(call.outputs)
    elif call.name.startswith("aclnnInplace"):
        return tensors, tensors[:1]
    else:
        count = min(_MORE_OUTPUTS.get(call.name, 1), max(len(tensors) - 1, 0))
    return tensors[: len(tensors) - count], tensors[len(tensors) - count :]


def _stated(call: Recorded) -> str | None:
    """The layout that a call of a Triton kernel ends with: the tensors that it reads and writes. Of
    them msprof shows five at most."""
    last = call.arguments[-1].strip('"') if call.arguments else ""
    return last if call.name.startswith("triton.") and " -> " in last else None


def _copied(call: Recorded) -> str:
    """The layout of a copy: Cast, TensorMove, or the one kernel that makes a view dense, by the
    view that it reads, and ViewCopy by the one that it writes.

    Of the other views it is unknown what their kernels are given."""
    target, source = call.tensors[:2]
    if source.is_dense and copied(call.tensors) == "ViewCopy":
        memory = f"[{prod(target.storage)}]:{target.dtype}"
        view = "r0:INT64 r0:INT64 [1]:INT64"
        return f"{memory} {view} 1 {view} -> {memory}"
    if source.is_dense:
        return "1 -> 0"
    steps = dense_steps(source)
    is_same = (target.dtype, target.shape) == (source.dtype, source.shape)
    if not is_same or not target.is_dense or len(steps) != 1 or not steps[0].after:
        return "? -> 0"
    (step,) = steps
    if step.kernel == "BroadcastTo" and source.dtype == "BOOL":  # repeated as INT32
        return "? -> 0"
    before, after, lists = step.before, step.after, 1
    if step.kernel == "Slice":
        lists = 2
        if whole := _whole(source):
            counts = f" [{len(whole)}]:INT64" * lists
            return f"{_in_brackets(whole)}:{source.dtype}{counts} -> 0"
    counts = f" [{len(after)}]:INT64" * lists
    return f"1{_in_brackets(before)}{counts} -> 0{_in_brackets(after)}"


def _in_brackets(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _whole(view: RecordedTensor) -> tuple[int, ...]:
    """The dense tensor that a view is cut out of; empty where its strides do not divide each
    other."""
    found, outer = list[int](), prod(view.storage)
    for stride, size in zip(view.strides, view.shape, strict=True):
        if stride and outer % stride == 0 and outer // stride >= size:
            found.append(outer // stride)
            outer = stride
        elif size == 1:
            found.append(1)
        else:
            return ()
    return tuple(found) if outer == 1 else ()


def _indexed(call: Recorded) -> str:
    """The layout of an index: which dimensions are indexed, and the strides of the result."""
    indexed, rank = call.arguments[1].count(", ") + 1, len(call.tensors[-1].shape)
    return f"0 [{indexed}]:INT64 [{rank}]:INT64 1 -> 2"


def _reduced(call: Recorded) -> str:
    """The layout of a reduction over all dimensions."""
    return f"0 [{len(call.tensors[0].shape)}]:INT64 -> 1"


def _product(call: Recorded) -> str:
    """The layout of a product, whose first operand is rows for a weight of two dimensions."""
    first, second, *_ = call.tensors
    is_of_rows = len(first.shape) > 2 == len(second.shape) and first.is_dense
    return "0R 1T -> 2R" if is_of_rows else "0T 1T -> 2"


def _raised(call: Recorded) -> str:
    """The layout of a power, which for whole numbers is Square (kernels/elementwise.py)."""
    return "0 -> 2" if call.tensors[0].dtype.startswith("INT") else "0 .=0 -> 2"


def _multiplied(call: Recorded) -> str:
    """The layout of a multiple; the factor is an input where the kernel is Mul."""
    given = "0" if call.tensors[0].dtype == "DT_BF16" else "0 .=0"
    return f"{given} -> {0 if call.name.startswith('aclnnInplace') else 2}"


def _normed(call: Recorded) -> str:
    """The layout of a LayerNorm, whose kernel writes its statistics in the dtypes of gamma and
    beta."""
    gamma, beta = (tensor.dtype for tensor in call.tensors[1:3])
    return f"0 2 3 -> 4 5:{gamma} 6:{beta}"


def _gated(call: Recorded) -> str:
    """The layout of an expert layer up to its gate; weights of four bits have one input more."""
    return "0 1 4 5 6 -> 7 8" if call.arguments[2] == "0" else "0 1P 4S 5 2 6 -> 7 8"


def _quantised_by_row(call: Recorded) -> str:
    """The layout of rows that are quantised by their own numbers, with an offset in a V2."""
    return "0 1 2 -> 4 5" if call.arguments[6] == "0" else "0 1 2 -> 4 5 6"


def _quantised(call: Recorded) -> str:
    """The layout of a quantised product, whose kernel is another one for INT4 weights."""
    x1, x2, *_ = call.tensors
    if (x1.dtype, x2.dtype) == ("INT8", "INT32"):
        return "0 1P 8 2 3S 4 99 6 7 -> -1"  # the empty tensor is none
    if (x1.dtype, x2.dtype) == ("FLOAT8_E4M3FN", "FLOAT4_E2M1"):
        return "0 1T 8 2 3T 4 5 6 7 -> -1"
    return "0 1T 3T 6 8 2 -> -1" if call.name == "aclnnQuantMatmulV5" else "0 1 3 6 8 2 -> -1"


def _convolved(call: Recorded) -> str:
    """The layout of a causal convolution; up to vLLM-Ascend 0.18 its lengths are arrays."""
    if call.arguments[4].startswith("ints"):
        return "0 1 2 3 #4:INT64 #5:INT64 #6:INT64 #7:INT64 -> -1"
    return "0 1 2 3 4 5 6 7 -> -1"


_CHOSEN: Mapping[str, Callable[[Recorded], str]] = MappingProxyType(
    {
        "aclnnMatmul": _product,
        "aclnnIndex": _indexed,
        "aclnnCausalConv1d": _convolved,
        "aclnnGroupedMatmulSwigluQuantWeightNZ": _gated,
        "aclnnDynamicQuantV2": _quantised_by_row,
        "aclnnInplaceCopy": _copied,
        "aclnnInplaceMuls": _multiplied,
        "aclnnMuls": _multiplied,
        "aclnnLayerNorm": _normed,
        "aclnnMax": _reduced,
        "aclnnPowTensorScalar": _raised,
        "aclnnQuantMatmulV5": _quantised,
        "aclnnQuantMatmulWeightNz": _quantised,
    }
)


def _read(layout: str, call: Recorded) -> _Side:
    if UNKNOWN in layout:
        return None
    return [cell for token in layout.split() for cell in _slots(token, call.arguments)]


def _slots(token: str, arguments: Sequence[str]) -> Iterable[_Cell]:
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ValueError(f"{token!r} is no slot of a layout")
    if match["shape"]:
        shape = tuple(map(int, match["shape"].split(",")))
        if match["place"] is None:
            return [_Cell(shape, match["dtype"], "ND")]
        (tensor,) = _tensors(arguments[int(match["place"])])
        return [_Cell(shape, tensor.dtype, tensor.format)]
    if match["kind"] == ".":
        dtype = match["dtype"] or _tensors(arguments[int(match["like"])])[0].dtype
        return [_Cell((), dtype, "ND")]
    place = int(match["place"])
    argument = arguments[place] if -len(arguments) <= place < len(arguments) else "0"
    if match["kind"]:
        return [_count(match["kind"], argument, match["dtype"])]
    return list(_passed(match, argument, arguments))


def _passed(match: re.Match[str], argument: str, arguments: Sequence[str]) -> Iterator[_Cell]:
    """The tensors that an argument is; an absent one says nothing."""
    tensors = _tensors(argument)
    if argument.startswith("{"):  # in a list of indices one of no elements means none
        tensors = [tensor for tensor in tensors if tensor.storage != (0,)]
    if not tensors:
        yield _Cell()
    for tensor in tensors:
        cell = _Cell.of(tensor)
        shape = _lying(match["lies"], tensor) if match["lies"] else cell.shape
        if match["lies"] == "P" and tensor.dtype == "INT32":
            width = 8 * shape[-1] if is_plain_format(tensor.format) else _NIBBLES
            shape, cell = (*shape[:-1], width), replace(cell, dtype="INT4")
        if match["lies"] == "S" and tensor.dtype == "INT64":
            cell = replace(cell, dtype="UINT64")
        if match["unless"] and arguments[int(match["unless"])] == "0":
            shape = ()
        yield _Cell(shape, match["dtype"] or cell.dtype, cell.format)


def _lying(how: str, tensor: RecordedTensor) -> tuple[int, ...]:
    shape = tensor.shape
    if how == "F":
        return (prod(shape),)
    if how == "R":
        return prod(shape[:-1]), shape[-1]
    if how == "M":
        is_turned = not tensor.is_dense and tensor.strides[-2] < tensor.strides[-1]
        return (*shape[:-2], shape[-1], shape[-2]) if is_turned else shape
    return shape if how == "V" else _as_it_lies(tensor)


def _as_it_lies(tensor: RecordedTensor) -> tuple[int, ...]:
    if tensor.format == "FRACTAL_NZ":
        return tensor.storage
    order = sorted(range(len(tensor.shape)), key=lambda i: -tensor.strides[i])
    return tensor.shape if tensor.is_dense else tuple(tensor.shape[i] for i in order)


def _count(kind: str, argument: str, dtype: str) -> _Cell:
    """How many numbers, tensors or dimensions an argument has, as a tensor of so many."""
    tensors = _tensors(argument)
    if kind == "r":  # CANN writes one dimension for a scalar
        return _Cell((max(1, len(tensors[0].shape)),), dtype, "ND")
    if kind == "n":
        return _Cell((len(tensors),), dtype, "ND")
    if not argument.startswith("ints("):
        return _Cell()
    *listed, last = argument[len("ints(") : -1].split(",")
    count = len(listed) + (int(last) if last.startswith("+") else bool(last))
    return _Cell((count,), dtype, "ND") if count else _Cell()


def _tensors(argument: str) -> list[RecordedTensor]:
    texts = argument[1:-1].split(", ") if argument.startswith("{") else [argument]
    return [tensor for tensor in map(parse_tensor, texts) if tensor is not None]


def _texts(name: str, side: _Side) -> dict[str, str]:
    if side is None:
        return {}
    return {
        f"{name} Shapes": f'"{";".join(cell.shape_text for cell in side)}"',
        f"{name} Data Types": ";".join(cell.dtype for cell in side),
        f"{name} Formats": ";".join(cell.format for cell in side),
    }
