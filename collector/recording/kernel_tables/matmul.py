"""What the recorded calls of products, normalisations, gates and quantisation launch: the OP Type
that msprof prints.

`SEEN` are those of real profiles (Addmm, Matmul and Mm: MatMulV2, and MatMulV3 for other shapes).
`READ` are in CANN's open sources, and that MatMulV3 takes no FRACTAL_NZ on A2 and A3. The others
have the name of their kernel, and are assumed.

Which of a family runs is the runtime's choice; here it is the first.
"""

from collections.abc import Callable, Sequence
from typing import Any

Tensors = Sequence[Any]


def multiplied(tensors: Tensors) -> str:
    """Batches are another kernel than matrices."""
    return "BatchMatMulV2" if min(len(tensor.shape) for tensor in tensors[:2]) > 2 else "MatMulV2"


def quantised(tensors: Tensors) -> str:
    """Rows of eight bits and a weight of four are another kernel (ops-nn: A8W4); eight INT4 are an
    INT32 here."""
    return "QuantBatchMatmulV4" if _dtypes(tensors) in _MIXED else "QuantBatchMatmulV3"


_MIXED = (("INT8", "INT32"), ("FLOAT8_E4M3FN", "FLOAT4_E2M1"))


def _dtypes(tensors: Tensors) -> tuple[str, ...]:
    return tuple(tensor.dtype for tensor in tensors[:2])


SEEN = (
    *("aclnnAddmm", "aclnnMatmul", "aclnnMm", "aclnnRmsNorm", "aclnnRmsNormGrad"),
    *("aclnnSwiGlu", "aclnnSwiGluGrad"),
)
READ = (
    *("aclnnAscendQuantV3", "aclnnDynamicQuantV2", "aclnnBatchMatMul", "aclnnLayerNorm"),
    *("aclnnDynamicBlockQuantV2", "aclnnDynamicMxQuantV2", "aclnnDynamicMxQuantV3"),
    *("aclnnGroupedDynamicBlockQuant", "aclnnGroupedDynamicBlockQuantV2"),
    *("aclnnGroupedDynamicMxQuantV2", "aclnnGroupedMatmulV4"),
    *("aclnnGroupedMatmulSwigluQuantV2", "aclnnGroupedMatmulSwigluQuantWeightNzV2"),
    *("aclnnQuantMatmulV5", "aclnnQuantMatmulWeightNz", "aclnnWeightQuantBatchMatmulV2"),
    *("aclnnAddRmsNormDynamicMxQuant", "aclnnRmsNormDynamicMxQuant", "aclnnSwigluMxQuant"),
)
KERNELS: dict[str, str | Callable[[Tensors], str]] = {
    "aclnnAddLayerNorm": "AddLayerNorm",
    "aclnnAddRmsNorm": "AddRmsNorm",
    "aclnnAddRmsNormDynamicQuantV2": "AddRmsNormDynamicQuant",
    "aclnnAddRmsNormQuantV2": "AddRmsNormQuant",
    "aclnnAddmm": "MatMulV2",
    "aclnnAddmmWeightNz": "MatMulV2",
    "aclnnAscendQuantV3": "AscendQuantV2",
    "aclnnBatchMatMul": "BatchMatMulV2",
    "aclnnDequantSwigluQuantV2": "DequantSwigluQuant",
    "aclnnDynamicBlockQuantV2": "DynamicBlockQuant",
    **dict.fromkeys(("aclnnDynamicMxQuantV2", "aclnnDynamicMxQuantV3"), "DynamicMxQuant"),
    "aclnnGroupedDynamicBlockQuantV2": "GroupedDynamicBlockQuant",
    "aclnnGroupedDynamicMxQuantV2": "GroupedDynamicMxQuant",
    "aclnnGroupedMatmulSwigluQuantWeightNZ": "GroupedMatmulSwigluQuant",
    "aclnnGroupedMatmulSwigluQuantWeightNzV2": "GroupedMatmulSwigluQuantV2",
    "aclnnGroupedMatmulV4": "GroupedMatmul",
    "aclnnGroupedMatmulV5": "GroupedMatmul",
    "aclnnGroupedMatmulWeightNz": "GroupedMatmul",
    "aclnnInplaceAddRmsNorm": "InplaceAddRmsNorm",
    "aclnnLayerNorm": "LayerNormV3",
    "aclnnMatmul": multiplied,
    "aclnnMatmulWeightNz": "MatMulV2",
    "aclnnMm": "MatMulV2",
    "aclnnQuantMatmulV4": "QuantBatchMatmulV3",  # of torch_npu 2.9.0
    "aclnnQuantMatmulV5": quantised,
    "aclnnQuantMatmulWeightNz": quantised,
    "aclnnRmsNorm": "RmsNorm",
    "aclnnRmsNormGrad": "RmsNormGrad",
    "aclnnSwiGlu": "SwiGlu",
    "aclnnSwiGluGrad": "SwiGluGrad",
    "aclnnTransQuantParamV3": "TransQuantParamV2",  # while a case is built
    "aclnnTransposeBatchMatMul": "TransposeBatchMatMul",
    "aclnnWeightQuantBatchMatmulV2": "WeightQuantBatchMatmulV2",
    # What vLLM-Ascend registers, by its own names.
    "batch_matmul_transpose": "batch_matmul_transpose_0",
    "npu_add_rms_norm_bias": "AddRmsNormBias",
}


def quantised_by_row(call: Any) -> str:
    """Rows by their largest number, or with an offset, which is the last argument then."""
    return "DynamicQuant" if call.arguments[-1] == "0" else "DynamicQuantV2"


OF_CALLS: dict[str, Callable[[Any], str]] = {"aclnnDynamicQuantV2": quantised_by_row}
