"""What the recorded calls of elementwise operators, comparisons, reductions and fills launch: the
OP Type that msprof prints.

`SEEN` are those of real profiles, where the kernel's name starts with the call (Muls: a Muls for
DT_BF16, a Mul for FLOAT; Div, GtTensor and Relu by calls that differ in that the other operand is a
number, or in place). `READ` are in CANN's open sources (ops-math, ops-nn). The others have the
name of their kernel, and are assumed.

Several calls add a Cast for a dtype that their kernel does not write (Sort, ArgMax and Histc give
INT32): only the kernel that the call is made for is named here.
"""

from collections.abc import Callable, Sequence
from typing import Any

from collector.ops.slots import broadcast

Tensors = Sequence[Any]


def multiplied(tensors: Tensors) -> str:
    """By a number of the host, which the operators here give as a float."""
    return "Muls" if "bf16" in str(tensors[0].dtype).lower() else "Mul"


def raised(tensors: Tensors) -> str:
    """To the second power, as the operators here do."""
    return "Square" if _is_integer(tensors[0]) else "Pows"


def added_up(tensors: Tensors) -> str:
    """Along the last dimension, as the operators here do where it can matter."""
    *outer, length = tensors[0].shape or (1,)
    rows = 1
    for size in outer:
        rows *= size
    big = rows >= 12800 and length >= 512
    return "CumsumCube" if big and not _is_integer(tensors[0]) else "Cumsum"


def repeated(tensors: Tensors) -> str:
    """Along a dimension of several, or of one."""
    return "RepeatInterleave" if len(tensors[0].shape) == 1 else "RepeatInterleaveV2"


def conjunction(tensors: Tensors) -> str:
    """Of booleans, or of the bits of integers."""
    return "LogicalAnd" if tensors[0].dtype == "BOOL" else "BitwiseAnd"


def negation(tensors: Tensors) -> str:
    return "LogicalNot" if tensors[0].dtype == "BOOL" else "Invert"


def _is_integer(tensor: Any) -> bool:
    name = str(tensor.dtype).lower()
    return name.startswith(("i", "u", "bool")) or "int" in name


SEEN = (
    *("aclnnAbs", "aclnnAdd", "aclnnApplyAdamWV2", "aclnnArange", "aclnnCast", "aclnnCos"),
    *("aclnnDiv", "aclnnEqTensor", "aclnnGelu", "aclnnGtTensor", "aclnnInplaceFillScalar"),
    *("aclnnInplaceOne", "aclnnInplaceZero", "aclnnLinalgVectorNorm", "aclnnLogSoftmax"),
    *("aclnnLogSoftmaxBackward", "aclnnMuls", "aclnnNeTensor", "aclnnNonzeroV2"),
    *("aclnnPowTensorScalar", "aclnnReduceSum", "aclnnRelu", "aclnnSin", "aclnnSubs"),
    *("aclnnThresholdBackward", "aclnnTopkV2", "aclnnTopk", "aclnnFastGelu", "ScaledMaskedSoftmax"),
)
READ = (
    *("aclnnAddcmul", "aclnnAdds", "aclnnEqScalar", "aclnnFloorDivides"),
    *("aclnnGtScalar", "aclnnNeScalar"),
    *("aclnnDropoutGenMask", "aclnnDropoutGenMaskV2", "aclnnRemainderTensorScalar"),
    *("aclnnArgMax", "aclnnClamp", "aclnnCumsum", "aclnnFloorDivide", "aclnnHistc"),
    *("aclnnInplaceMaskedFillScalar", "aclnnLog1p", "aclnnMax", "aclnnMul"),
    "aclnnRemainderTensorTensor",
    *("aclnnRepeatInterleave", "aclnnRepeatInterleaveWithDim", "aclnnSWhere", "aclnnSilu"),
    *("aclnnSiluBackward", "aclnnSoftmaxBackward", "aclnnSort", "aclnnSub"),
)
KERNELS: dict[str, str | Callable[[Tensors], str]] = {
    "aclnnAbs": "Abs",
    "aclnnAdds": "Add",
    "aclnnAll": "ReduceAll",
    "aclnnAmax": "ReduceMax",
    "aclnnAmin": "ReduceMin",
    "aclnnAny": "ReduceAny",
    "aclnnApplyAdamWV2": "ApplyAdamWV2",
    "aclnnDropoutDoMask": "DropOutDoMask",
    "aclnnForeachAddListV2": "ForeachAddList",
    "aclnnForeachAddScalarV2": "ForeachAddScalar",
    "aclnnForeachSubListV2": "ForeachSubList",
    "aclnnForeachMulScalarV2": "ForeachMulScalar",
    "aclnnForeachMulList": "ForeachMulList",
    "aclnnForeachDivScalarV2": "ForeachDivScalar",
    "aclnnForeachDivList": "ForeachDivList",
    "aclnnForeachSqrt": "ForeachSqrt",
    "aclnnForeachNeg": "ForeachNeg",
    "aclnnForeachLerpScalar": "ForeachLerpScalar",
    "aclnnForeachAddcmulScalarV2": "ForeachAddcmulScalar",
    "aclnnForeachAddcdivScalarV2": "ForeachAddcdivScalar",
    "aclnnArange": "Range",
    "aclnnArgMax": "ArgMaxV2",
    "aclnnBitwiseAndTensor": conjunction,
    "aclnnBitwiseNot": negation,
    "aclnnCast": "Cast",
    "aclnnClamp": "ClipByValueV2",
    "aclnnCos": "Cos",
    "aclnnCumsum": added_up,
    "aclnnDiv": "RealDiv",
    "aclnnEqScalar": "Equal",
    "aclnnEqTensor": "Equal",
    "aclnnExp": "Exp",
    "aclnnDropoutGenMask": "DSAGenBitMask",
    "aclnnDropoutGenMaskV2": "DSAGenBitMask",
    "aclnnFastGelu": "FastGelu",
    "aclnnFastGeluBackward": "FastGeluGrad",
    "aclnnFloorDivide": "FloorDiv",
    "aclnnFloorDivides": "FloorDiv",
    "aclnnGeTensor": "GreaterEqual",
    "aclnnGelu": "Gelu",
    "aclnnGeluV2": "GeluV2",
    "aclnnGeScalar": "GreaterEqual",
    "aclnnGtScalar": "Greater",
    "aclnnGtTensor": "Greater",
    "aclnnHistc": "HistogramV2",
    "aclnnInplaceAdds": "Add",
    "aclnnInplaceDiv": "RealDiv",
    "aclnnInplaceFillScalar": "Fill",
    "aclnnInplaceLog": "Log",
    "aclnnInplaceMaskedFillScalar": "MaskedFill",
    "aclnnInplaceMuls": multiplied,
    "aclnnInplaceOne": "OnesLike",
    "aclnnInplaceUniform": "RandomUniform",
    "aclnnInplaceZero": "ZerosLike",
    "aclnnLeTensor": "LessEqual",
    "aclnnLinalgVectorNorm": "LpNormV2",
    "aclnnLog": "Log",
    "aclnnLog1p": "Log1p",
    "aclnnLogSoftmax": "LogSoftmaxV2",
    "aclnnLogSoftmaxBackward": "LogSoftmaxGrad",
    "aclnnLogicalAnd": "LogicalAnd",
    "aclnnLogicalNot": "LogicalNot",
    "aclnnLogicalOr": "LogicalOr",
    "aclnnLtScalar": "Less",
    "aclnnLtTensor": "Less",
    "aclnnMax": "ReduceMax",
    "aclnnMaxDim": "ArgMaxWithValue",
    "aclnnMaximum": "Maximum",
    "aclnnMean": "ReduceMean",
    "aclnnMinimum": "Minimum",
    "aclnnMul": "Mul",
    "aclnnMuls": multiplied,
    "aclnnNeScalar": "NotEqual",
    "aclnnNeTensor": "NotEqual",
    "aclnnNeg": "Neg",
    "aclnnNonzero": "NonZero",
    "aclnnNonzeroV2": "NonZero",
    "aclnnPowTensorScalar": raised,
    "aclnnPowTensorTensor": "Pow",
    "aclnnReciprocal": "Reciprocal",
    "aclnnReduceSum": "ReduceSum",
    "aclnnRelu": "Relu",
    "aclnnRemainderTensorScalar": "FloorMod",
    "aclnnRemainderTensorTensor": "FloorMod",
    "aclnnRepeatInterleave": repeated,
    "aclnnRepeatInterleaveWithDim": repeated,
    "aclnnRsqrt": "Rsqrt",
    "aclnnSWhere": "SelectV2",
    "aclnnSigmoid": "Sigmoid",
    "aclnnSilu": "Swish",
    "aclnnSiluBackward": "SiluGrad",
    "aclnnSin": "Sin",
    "aclnnSoftmax": "SoftmaxV2",
    "aclnnSoftmaxBackward": "SoftmaxGrad",
    "aclnnSort": "Sort",
    "aclnnSqrt": "Sqrt",
    "aclnnSub": "Sub",
    "aclnnSubs": "Sub",
    "aclnnTanh": "Tanh",
    "aclnnTopk": "TopKV2",
    "aclnnTopkV2": "TopKV2",
    "aclnnThresholdBackward": "ReluGrad",
}


def added(call: Any) -> str:
    """A sum; of a multiple of the second tensor by one kernel, or by a Mul and an Add."""
    if call.number(2) == 1:
        return "Add"
    return "Axpy" if call.tensors[0].dtype in _AXPY else "Add"


def product_added(call: Any) -> str:
    """A sum with a product; without a further factor by another kernel."""
    x, _, factor, *_ = call.tensors
    is_plain = call.number(3) == 1 and broadcast(x.shape, factor.shape) == x.shape
    return "AxpyV2" if is_plain and x.dtype in (*_AXPY, "DT_BF16") else "Addcmul"


_AXPY = ("FLOAT", "FLOAT16", "INT32")  # on A2 and A3
OF_CALLS: dict[str, Callable[[Any], str]] = {
    "aclnnAdd": added,
    "aclnnInplaceAdd": added,
    "aclnnAddcmul": product_added,
    "aclnnInplaceAddcmul": product_added,
}
