"""Rules that decide whether a case can be replayed; planning and measuring share them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from collector.codec.errors import BadInput
from collector.model.case import Case
from collector.model.measurement import Outcome
from collector.model.stack import COLLECTIVE_LIBRARIES
from collector.model.vocabulary import GRAPH, LAUNCHED_BY, OF_950, OPERATOR_FILE, STATIC
from collector.ops.spec import OpSpec
from collector.ranks import distribution
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from collector.ranks.gangs import is_of_gangs, ranks_needed

# Rows that no public call launches by itself: of graphs, as op_summary lists them for decode steps
# that torchair compiled; of several ranks; of devices that are not supported.

_FUSED = "fused by the graph"
_NAMED = {
    "AutomaticBufferFusionOp": f"{_FUSED}: the row does not list the operators that it was made of",
    "Data": "not a kernel: an input of a graph",
    "Bincount": "torch.bincount launches it between a minimum and a maximum that the host awaits",
    "ResizeBilinearV2": (
        "A2 and A3 launch UpsampleBilinear2d for most sizes; the scales that decide are in no row"
    ),
    "MemSet": (
        "it clears the output of another kernel, with which it is measured; its row has no sizes"
    ),
    "LinearIndex": "the first kernel of index_put, with whose last kernel it is measured",
    "_kv8_swa_rows_kernel": "of a changed copy of vLLM-Ascend: no release has its function",
    **dict.fromkeys(
        (
            *("SparseFlashMlaMetadata", "SparseAttnSharedkvMetadata"),
            *("QuantLightningIndexerV2Metadata", "VllmQuantLightningIndexerMetadata"),
        ),
        "a plan by the AI CPU, once a step, from numbers of heads and lengths that its row does "
        "not have; it is made before a measurement of its attention",
    ),
    "LpNormUpdateV2": "of chips before Atlas A2: a root of the one sum of LpNormReduceV2",
    **dict.fromkeys(
        ("Conv2DBackpropFilterD", "StridedSliceD"),
        "made by CANN's graph engine of 2023 from constants that its row does not have",
    ),
}
# Kernels that multiply and communicate at once (MC2), and what they do over the ranks of a group.
_OVER_RANKS = {
    "AllGatherMatmul": "gathers operands",
    "AllGatherMatmulV2": "gathers operands",
    "AlltoAllAllGatherBatchMatMul": "exchanges and gathers operands",
    "AlltoAllvGroupedMatMul": "exchanges operands",
    "DispatchGmmCombineDecode": "sends tokens to experts and brings results back",
    "BatchMatMulReduceScatterAlltoAll": "scatters and exchanges sums",
    "GroupedMatMulAlltoAllv": "exchanges results",
    "GroupedMatMulAllReduce": "adds up results",
    "MatmulAllReduce": "adds up results",
    "MatmulAllReduceAddRmsNorm": "adds up results",
    "MatmulReduceScatter": "adds up and scatters results",
    "MatmulReduceScatterV2": "adds up and scatters results",
    "QuantMatmulReduceScatter": "adds up and scatters results",
}
# Kernels of Ascend 950 alone that are not replayed, by the sources of CANN 9 (ops-nn,
# ops-transformer): their outputs or inputs are FP8, MXFP8 or FP4, or they are of its network.
_OF_950 = (
    "DynamicMxQuantWithDualAxis",
    # of vLLM-Ascend 0.23, called for that device alone
    *("SwigluGroupQuant", "KvCompressEpilog", "IndexerCompressEpilogV2"),
    *("KvQuantSparseAttnSharedkv", "KvQuantSparseAttnSharedkvMetadata"),
)
_NAMED |= {
    kernel: f"it {what} over ranks, which its row does not name: not measured"
    for kernel, what in _OVER_RANKS.items()
}
_NAMED |= dict.fromkeys(_OF_950, OF_950.replace("dtype", "kernel"))
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "RealDiv"})
_NARROW = frozenset({"FLOAT16", "DT_BF16"})


def not_launched_reason(case: Case) -> str:
    """Return why no call launches the kernel of a row; empty if a call may."""
    if case.kernel_type in _ARITHMETIC and _is_cast(case):
        return f"{_FUSED}: it casts its result to 16 bits; without a graph a Cast does this"
    return _NAMED.get(case.kernel_type, "")


def _is_cast(case: Case) -> bool:
    """Return whether all inputs are FLOAT and the outputs have 16 bits."""
    inputs, outputs = (
        {slot.known_dtype.spelling if slot.known_dtype else slot.dtype for slot in slots or ()}
        for slots in (case.inputs, case.outputs)
    )
    return inputs == {"FLOAT"} and bool(outputs) and outputs <= _NARROW


logger = logging.getLogger(__name__)

NO_INPUTS = "its inputs are unknown (N/A)"
NO_OPERATOR = "no operator is declared"
NO_RANKS = "the row does not define the operation of its ranks"
WRONG_NUMBER_OF_RANKS = "its ranks need as many devices at once, and warm caches"
TOO_MANY_RANKS = "too many ranks for a cpu"
MOST_CPU_RANKS = 64
# ep_world_size of aclnnMoeDistributeDispatchV2 and aclnnMoeDistributeCombineV2.
CANN_RANKS = range(2, 769)
NO_SUCH_WORLD = "CANN cannot exchange tokens of experts among this number of ranks"
NO_LIBRARY = "events time one device: `opmeter comm` measures collectives, by other backends"
NO_KERNEL = "mode kernel: gloo launches no kernel that can be timed"

# Exceptions of an error in an operator's declaration, for shapes that it did not foresee.
DECLARATION_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

FindOperator = Callable[[str], OpSpec | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The outcome of a case that needs no device.

    `why` is the reason in general words, equal for all similar cases; `reason` names this case."""

    outcome: Outcome
    why: str
    reason: str


def refusal(case: Case, find: FindOperator, backend: str) -> Refusal | None:
    """Return why a case cannot be measured; None if it can.

    An error in a declaration is not a refusal. The session isolates each case and meets the error
    again; it becomes the outcome of that case."""
    if is_of_gangs(case):
        return _refusal_by_ranks(case, backend)
    if case.kernel_type in DISTRIBUTE_KERNELS and (no := _refusal_of_world(1, backend)):
        return no
    if why := not_launched_reason(case):
        return Refusal(Outcome.UNSUPPORTED, why, f"{why}: {case.describe()}")
    if case.inputs is None:
        reason = "its inputs are unknown (N/A in the source)"
        return Refusal(Outcome.UNSUPPORTED, NO_INPUTS, reason)
    op = find(case.kernel_type)
    if op is None:
        reason = f"{NO_OPERATOR} for {case.kernel_type}"
        if (file := case.attribute(OPERATOR_FILE)) is not None:
            reason += f": its file of operators ({file}) is not given"
        return Refusal(Outcome.UNSUPPORTED, NO_OPERATOR, reason)
    try:
        complaint, missing = op.rejection_reason(case, backend), op.missing_metadata(case)
    except DECLARATION_ERRORS as error:
        logger.warning("%s cannot be checked: %r", case.describe(), error)
        return None
    if complaint:
        return Refusal(Outcome.REJECTED, complaint, f"{complaint}: {case.describe()}")
    return Refusal(Outcome.UNSUPPORTED, missing.partition(":")[0], missing) if missing else None


def refusal_on_ranks(case: Case, find: FindOperator, backend: str, ranks: int) -> Refusal | None:
    """Return why this number of ranks does not measure a case; None if it can.

    Either no number of ranks can, or the case needs another number. A plan may have had too few
    devices for the case, or another cache state; a tree is measured on one rank."""
    return refusal(case, find, backend) or _refusal_of_ranks(case, ranks)


def _refusal_of_ranks(case: Case, ranks: int) -> Refusal | None:
    needed = ranks_needed(case) if is_of_gangs(case) else 1
    if needed == ranks:
        return None
    reason = f"it needs {needed} ranks at once, and has {ranks}"
    return Refusal(Outcome.UNSUPPORTED, WRONG_NUMBER_OF_RANKS, reason)


def _refusal_by_ranks(case: Case, backend: str) -> Refusal | None:
    """Return why a case of several ranks cannot be measured.

    Such a case has no declaration: the bench knows by name what it can run."""
    if backend not in COLLECTIVE_LIBRARIES:
        return Refusal(Outcome.UNSUPPORTED, NO_LIBRARY, NO_LIBRARY)
    try:
        ranks = ranks_needed(case)
        mode = collective_case_of(case).mode if is_collective(case.kernel_type) else ""
    except BadInput as error:
        return Refusal(Outcome.REJECTED, NO_RANKS, str(error))
    if ranks < 2:
        return Refusal(Outcome.REJECTED, NO_RANKS, f"{ranks} rank: expected at least 2")
    if case.kernel_type in DISTRIBUTE_KERNELS and (no := _refusal_of_world(ranks, backend)):
        return no
    if backend == "cpu" and ranks > MOST_CPU_RANKS:
        reason = f"{ranks} ranks: each is a process; expected at most {MOST_CPU_RANKS} on a cpu"
        return Refusal(Outcome.REJECTED, TOO_MANY_RANKS, reason)
    if mode == "kernel" and backend == "cpu":
        return Refusal(Outcome.REJECTED, NO_KERNEL, NO_KERNEL)
    return None


def _refusal_of_world(ranks: int, backend: str) -> Refusal | None:
    """Return why an NPU cannot exchange tokens of experts among this number of ranks.

    A reference backend can with any number."""
    if backend != "npu" or ranks in CANN_RANKS:
        return None
    reason = (
        f"{ranks} rank{'s' if ranks > 1 else ''}: CANN requires {CANN_RANKS[0]} to "
        f"{CANN_RANKS[-1]}, 16 or more for full mesh on A2; set the number of ranks of a row with "
        f"`EP Size`, or with `collectives: {{ep_size: N}}` for a profile"
    )
    return Refusal(Outcome.REJECTED, NO_SUCH_WORLD, reason)


# Kernels that an NPU builds for the shapes of a case: OP State `static`.

NO_STATIC_KERNELS = "a kernel for these shapes alone cannot be built here"


def requires_static_kernel(case: Case) -> bool:
    """Return whether an NPU builds the case's kernel for its shapes, which CANN then uses for every
    call of them. A graph has its own kernels."""
    return case.op_state == STATIC and case.attribute(LAUNCHED_BY) != GRAPH


def refusal_of_static(case: Case, problem: str) -> Refusal | None:
    """Return why a case is not measured where kernels cannot be built because of a problem; None
    if it is, or if there is no problem.

    CANN would use the kernel for any shape instead, so the result would be another kernel's."""
    if not problem or not requires_static_kernel(case):
        return None
    return Refusal(Outcome.UNSUPPORTED, NO_STATIC_KERNELS, f"{NO_STATIC_KERNELS}: {problem}")


# Cases that only Ascend 950 launches: a tensor is FLOAT8, a scale of MX quantisation, or FLOAT4, or
# the kernel exchanges tokens over its network.

_BEFORE_950 = ("ATLAS_800_A2_", "ATLAS_800_A3_")  # how the names of other devices begin


def requires_950(case: Case) -> bool:
    """Return whether the kernel, or the dtype of a tensor, is of Ascend 950 alone."""
    if case.kernel_type in distribution.OF_950:
        return True
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    known = (slot.known_dtype for slot in slots if slot.shape is not None)
    return any(dtype is not None and dtype.held_as == OF_950 for dtype in known)


def refusal_of_device(case: Case, device: str) -> Refusal | None:
    """Return why an NPU of this name does not have the case's kernel or dtypes; None if it may."""
    if not device.startswith(_BEFORE_950) or not requires_950(case):
        return None
    is_kernel = case.kernel_type in distribution.OF_950
    why = OF_950.replace("dtype", "kernel") if is_kernel else OF_950
    return Refusal(Outcome.UNSUPPORTED, why, f"{device}: {why}: {case.describe()}")
