"""Which of several kernels a recorded call launches, where its dtypes, shapes or numbers decide.

For A2 and A3. The comparisons with numbers, and what makes a view dense, are those of CANN's open
sources (ops-math, ops-nn), which also say that MatMulV3 takes no FRACTAL_NZ there; profiles show
Muls for DT_BF16 and Mul for FLOAT. Several calls add kernels: a Cast for a dtype that their kernel
does not write, a Sort before EmbeddingDenseGradV2. Only the kernel that the call is made for is
named here.
"""

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

from collector.engine.calls import Recorded
from collector.engine.views import copied
from collector.ops.slots import broadcast

_AXPY = ("FLOAT", "FLOAT16", "INT32")
_GATHERED = ("INT32", "FLOAT", "FLOAT16", "DT_BF16")
_MIXED = (("INT8", "INT32"), ("FLOAT8_E4M3FN", "FLOAT4_E2M1"))  # eight INT4 are an INT32 here


def _added(call: Recorded) -> str:
    """A sum; of a multiple of the second tensor by one kernel, or by a Mul and an Add."""
    return "Axpy" if call.number(2) != 1 and call.tensors[0].dtype in _AXPY else "Add"


def _product_added(call: Recorded) -> str:
    """A sum with a product; without a further factor by another kernel."""
    x, _, factor, *_ = call.tensors
    is_plain = call.number(3) == 1 and broadcast(x.shape, factor.shape) == x.shape
    return "AxpyV2" if is_plain and x.dtype in (*_AXPY, "DT_BF16") else "Addcmul"


def _multiplied_by_number(call: Recorded) -> str:
    """By a number of the host, which the operators here give as a float."""
    return "Muls" if call.tensors[0].dtype == "DT_BF16" else "Mul"


def _raised(call: Recorded) -> str:
    """To the second power, as the operators here do."""
    return "Square" if _is_integer(call) else "Pows"


def _added_up(call: Recorded) -> str:
    """Along the last dimension, as the operators here do where it can matter."""
    *outer, length = call.tensors[0].shape or (1,)
    is_big = prod(outer) >= 12800 and length >= 512
    return "CumsumCube" if is_big and not _is_integer(call) else "Cumsum"


def _repeated(call: Recorded) -> str:
    """Along a dimension of several, or of one."""
    return "RepeatInterleave" if len(call.tensors[0].shape) == 1 else "RepeatInterleaveV2"


def _conjunction(call: Recorded) -> str:
    """Of truth values, or of the bits of integers."""
    return "LogicalAnd" if call.tensors[0].dtype == "BOOL" else "BitwiseAnd"


def _negation(call: Recorded) -> str:
    return "LogicalNot" if call.tensors[0].dtype == "BOOL" else "Invert"


def _multiplied(call: Recorded) -> str:
    """Batches are another kernel than matrices."""
    first, second, *_ = call.tensors
    return "BatchMatMulV2" if min(len(first.shape), len(second.shape)) > 2 else "MatMulV2"


def _quantised_product(call: Recorded) -> str:
    """Rows of eight bits and a weight of four are another kernel (ops-nn: A8W4)."""
    x1, x2, *_ = call.tensors
    return "QuantBatchMatmulV4" if (x1.dtype, x2.dtype) in _MIXED else "QuantBatchMatmulV3"


def _quantised_by_row(call: Recorded) -> str:
    """Rows by their largest number, or with an offset, which is the last argument then."""
    return "DynamicQuant" if call.arguments[-1] == "0" else "DynamicQuantV2"


def _joined(call: Recorded) -> str:
    """Inputs and the output; one input alone is moved."""
    return "ConcatD" if len(call.tensors) > 2 else "TensorMove"


def _gathered(call: Recorded) -> str:
    """A tensor and an index, which for the newer kernel differ in one dimension at most."""
    x, index, *_ = call.tensors
    other = sum(a != b for a, b in zip(x.shape, index.shape, strict=True))
    return "GatherElementsV2" if x.dtype in _GATHERED and other < 2 else "GatherElements"


def _cast_of_format(call: Recorded) -> str:
    """Into another format, or a copy in the same one. `Identity` between two formats is what
    torch_npu requests for a cast: that CANN makes TransData of it is assumed."""
    source, target = call.tensors
    return "Identity" if source.format == target.format else "TransData"


def _is_integer(call: Recorded) -> bool:
    return call.tensors[0].dtype.startswith(("INT", "UINT", "BOOL"))


CHOSEN: Mapping[str, Callable[[Recorded], str]] = MappingProxyType(
    {
        **dict.fromkeys(("aclnnAdd", "aclnnInplaceAdd"), _added),
        **dict.fromkeys(("aclnnAddcmul", "aclnnInplaceAddcmul"), _product_added),
        **dict.fromkeys(("aclnnMuls", "aclnnInplaceMuls"), _multiplied_by_number),
        **dict.fromkeys(("aclnnRepeatInterleave", "aclnnRepeatInterleaveWithDim"), _repeated),
        **dict.fromkeys(("aclnnQuantMatmulV5", "aclnnQuantMatmulWeightNz"), _quantised_product),
        "aclnnBitwiseAndTensor": _conjunction,
        "aclnnBitwiseNot": _negation,
        "aclnnCat": _joined,
        "aclnnCumsum": _added_up,
        "aclnnDynamicQuantV2": _quantised_by_row,
        "aclnnGather": _gathered,
        "aclnnInplaceCopy": lambda call: copied(*call.tensors[:2]),
        "aclnnMatmul": _multiplied,
        "aclnnPowTensorScalar": _raised,
        "Identity": _cast_of_format,
    }
)
