"""Write `collector/data/proofs.csv`, which `opmeter ops` shows: how each kernel's type, shapes and
dtypes are proved until an NPU confirms them. Usage: `python -m tools proofs`.

The calls of the stock torch_npu 2.13.0 are recorded; the kernels they launch, and the tensors these
show, follow from the declarations of operators, made from sources and real profiles.
"""

import re
from pathlib import Path

from collector.codec.table import table_bytes
from collector.engine.environments import RELEASES, STACKS
from collector.ops.registry import all_ops
from collector.ops.releases import ABSENT, release_status
from collector.ops.spec import OpSpec
from collector.ranks.distribution import DISTRIBUTE_KERNELS, OF_950
from tests.fixtures.op_rows import rows_alone, rows_of_graphs
from tests.npu.golden import golden_path
from tests.npu.shown_otherwise import DIFFERENT, INCOMPLETE
from tests.npu.stock_stacks import otherwise_path
from tests.npu.triton_rows import triton_path
from tools.operators.releases.wheels import definitions_of

RECORDED = "call recorded, every tensor as the row has it"
_IN_BLOCKS = "call recorded; the blocks of its tensors are those of a real profile"
_DEFINED = "schema and definition in the wheel of vllm_ascend {}"
_SCHEMA = "schema in the wheels of vllm_ascend alone"
_SOURCES = "call of vLLM-Ascend's sources; no released wheel has the function"
_OF_STACKS = "call recorded of the stock vllm_ascend {}"
_OF_TRITON = "launch recorded of the stock vllm_ascend {}"
_OF_GRAPHS = "graph made by the stock torchair, its op as the row has it; compiled by none yet"
# An own call of a golden file; marked ones belong to other kernels.
_OWN = re.compile(r"^  ([A-Z]+ [\w.:]+)\(", re.MULTILINE)
_SEEN, _READ = "seen in a real profile", "read in CANN's open sources"
_NAMED = "named by the call"
_ASSUMED = "assumed from its name"
# Calls, without `aclnn`, whose kernel a real profile shows, or CANN's open sources (ops-math,
# ops-nn). Addmm, Matmul and Mm launch MatMulV2, and MatMulV3 for other shapes; the calls of
# vLLM-Ascend are in published statistics of DeepSeek-V4.1 on A3.
_CALLS_SEEN = """
Abs Add Addmm ApplyAdamWV2 Arange Cast Cat Cos Div Embedding EmbeddingDenseBackward EqTensor
FastGelu FlashAttentionScore FlashAttentionScoreGrad FusedInferAttentionScoreV3 Gelu GtTensor
InplaceFillScalar InplaceOne InplaceZero LinalgVectorNorm LogSoftmax LogSoftmaxBackward Matmul
MaxPool2dWithMask MaxPool2dWithMaskBackward Mm Muls NeTensor NonzeroV2 PowTensorScalar ReduceSum
Relu RmsNorm RmsNormGrad ScaledMaskedSoftmax Sin Subs SwiGlu SwiGluGrad ThresholdBackward Topk
TopkV2 Tril npu_quant_lightning_indexer_v2 npu_rms_norm_cast npu_scatter_nd_update_sk
npu_sparse_flash_mla
"""
_CALLS_READ = """
AddRmsNormDynamicMxQuant Addcmul Adds ArgMax AscendQuantV3 BatchMatMul Clamp ConstantPadNd Cumsum
DropoutGenMask DropoutGenMaskV2 DynamicBlockQuantV2 DynamicMxQuantV2 DynamicMxQuantV3
DynamicQuantV2 EqScalar Flip FloorDivide FloorDivides Gather GroupedDynamicBlockQuant
GroupedDynamicBlockQuantV2 GroupedDynamicMxQuantV2 GroupedMatmulSwigluQuantV2
GroupedMatmulSwigluQuantWeightNzV2 GroupedMatmulV4 GtScalar Histc Index IndexFill IndexPutImpl
IndexSelect InplaceCopy InplaceIndexFill InplaceMaskedFillScalar InplaceScatter LayerNorm Log1p
Max MlaPrologV3WeightNz Mul NeScalar QuantMatmulV5 QuantMatmulWeightNz RemainderTensorScalar
RemainderTensorTensor Repeat RepeatInterleave RepeatInterleaveWithDim RmsNormDynamicMxQuant SWhere
ScatterNdUpdate Silu SiluBackward SoftmaxBackward Sort Stack Sub SwigluMxQuant
WeightQuantBatchMatmulV2
"""
SEEN, READ = frozenset(_CALLS_SEEN.split()), frozenset(_CALLS_READ.split())
_OVER_RANKS = "call recorded over two ranks"
_CHOSEN_ON_950 = "the call of {}, for which CANN chooses this kernel on Ascend 950"


def proofs_table() -> bytes:
    """Return one row per operator: its kernel type, and its proofs."""
    header = ("Kernel Type", "Proof", "Type")
    return table_bytes(header, ([op.kernel, proof(op), type_proof(op)] for op in all_ops()))


def proof(op: OpSpec) -> str:
    """Return the proof that a call launches its kernel on the tensors of a row."""
    if op.library == "vllm-ascend":
        if launching := _launching(op.kernel):
            return _OF_TRITON.format(" and ".join(launching))
        of_wheels = _in_wheels(op)
        stacks = " and ".join(release for release in STACKS if _is_recorded(op.kernel, release))
        return f"{_OF_STACKS.format(stacks)}; {of_wheels}" if stacks else of_wheels
    if op.kernel in OF_950:
        return _CHOSEN_ON_950.format(OF_950[op.kernel])
    if op.kernel in DISTRIBUTE_KERNELS:
        return _OVER_RANKS
    if op.kernel in INCOMPLETE:
        return f"call recorded; {INCOMPLETE[op.kernel]}"
    if op.layouts and not op.kernel.startswith("BN"):  # whose blocks are those of torch_npu
        return _IN_BLOCKS
    rows = rows_alone(op.kernel)
    if not rows and rows_of_graphs(op.kernel):
        return _OF_GRAPHS
    if not rows:
        return f"the call of {', '.join(op.twins)}, among which the runtime chooses"
    if other := DIFFERENT.get(op.kernel):
        reasons = sorted({reason for reason in other.values() if reason != "the same"})
        return f"{RECORDED}, but {len(other)} of {len(rows)} rows: {'; '.join(reasons)}"
    return RECORDED


def type_proof(op: OpSpec) -> str:
    """Return the proof that the call launches a kernel of this type, and of no other."""
    if op.kernel in OF_950:
        return _READ
    if op.library == "vllm-ascend" and _defining(op.kernel):
        return "by its definition in the wheel"
    if _launching(op.kernel):
        return _NAMED
    if rows_of_graphs(op.kernel) and not rows_alone(op.kernel):
        return _SEEN
    recorded = [kernel for kernel in sorted(op.family) if golden_path(kernel).exists()]
    own = {call for kernel in recorded for call in _OWN.findall(golden_path(kernel).read_text())}
    if f"ACLOP {op.kernel}" in own:
        return _NAMED
    called = {call.partition(" ")[2].removeprefix("aclnn") for call in own}
    return _SEEN if called & SEEN else _READ if called & READ else _ASSUMED


def _in_wheels(op: OpSpec) -> str:
    """Return what the wheels contain of one of vLLM-Ascend's own operators."""
    if release := _defining(op.kernel):
        return _DEFINED.format(release)
    status = release_status(op.kernel).values()
    return _SOURCES if status and set(status) == {ABSENT} else _SCHEMA


def _defining(kernel: str) -> str:
    """Return the first serving stack whose wheel defines a kernel; empty if none does."""
    names = (name for name in STACKS if kernel in definitions_of(f"vllm_ascend-{name}"))
    return next(names, "")


def _is_recorded(kernel: str, release: str) -> bool:
    """Return whether each of its rows became a call of the kernel on a serving stack."""
    own = _blocks(otherwise_path(release), kernel)
    return bool(own) and all("\n  ACLNN " in block for block in own)


def _launching(kernel: str) -> list[str]:
    """Return the serving stacks whose functions launched a kernel of Triton for each of its
    rows."""
    return [
        release.vllm_ascend
        for name, release in RELEASES.items()
        if (blocks := _blocks(triton_path(name), kernel))
        and all(f"\n  CUSTOM triton.{kernel}(" in block for block in blocks)
    ]


def _blocks(path: Path, kernel: str) -> list[str]:
    """Return the contents of a file about the rows of a kernel."""
    blocks = path.read_text().split("\n\n")
    return [block for block in blocks if block.startswith(f"{kernel}: ")]
