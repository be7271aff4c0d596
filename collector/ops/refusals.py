"""Whether a case can be replayed, and why not: one rule for who plans and for who measures."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from collector.codec.errors import BadInput
from collector.model.case import Case, Slot
from collector.model.measurement import Outcome
from collector.ops.spec import OpSpec
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from collector.ranks.gangs import is_of_gangs, ranks_of

# Rows of a graph that no public call launches alone.
#
# Facts of decode steps that torchair compiled, as op_summary shows them.

_FUSED = "fused by the graph"
_NAMED = {
    "AutomaticBufferFusionOp": f"{_FUSED}: which operators it made one of is not in the row",
    "Data": "no kernel of its own: an input of a graph",
}
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "RealDiv"})
_NARROW = frozenset({"FLOAT16", "DT_BF16"})


def of_graph_alone(case: Case) -> str:
    """Why no call launches the kernel of a row; empty where one may."""
    if case.kernel_type in _ARITHMETIC and _is_cast(case.inputs or (), case.outputs or ()):
        return f"{_FUSED}: it casts its result to 16 bits, which a Cast does elsewhere"
    return _NAMED.get(case.kernel_type, "")


def _is_cast(inputs: tuple[Slot, ...], outputs: tuple[Slot, ...]) -> bool:
    """FLOAT alone goes in, and 16 bits come out."""
    came, given = ({_spelling(slot) for slot in slots} for slots in (inputs, outputs))
    return came == {"FLOAT"} and bool(given) and given <= _NARROW


def _spelling(slot: Slot) -> str:
    return slot.known_dtype.spelling if slot.known_dtype else slot.dtype


logger = logging.getLogger(__name__)

NO_INPUTS = "its inputs are unknown (N/A)"
NO_OPERATOR = "no operator is declared"
NO_RANKS = "it does not tell what its ranks are to do"
NO_PLACE = "its ranks need as many devices at once, and warm caches"
TOO_MANY_RANKS = "too many ranks for a cpu"
MOST_CPU_RANKS = 64
# aclnnMoeDistributeDispatchV2 and CombineV2, of ep_world_size.
CANN_RANKS = range(2, 769)
NO_SUCH_WORLD = "CANN has no exchange of experts among so many ranks"
NO_KERNEL = "mode kernel: gloo runs no kernel that could be timed"

# What a mistake in an operator's declaration raises, on shapes that it did not foresee.
UNFORESEEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

FindOperator = Callable[[str], OpSpec | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a case is answered without a device: `why` in the words of all that are alike, `reason`
    in those of this one."""

    outcome: Outcome
    why: str
    reason: str


def refusal(case: Case, find: FindOperator, backend: str) -> Refusal | None:
    """Why a case needs no device to be answered; None where it can be measured. It is not answered
    for a mistake in a declaration: the session, which has a fence around each case, meets that
    again, and what becomes of it is the outcome of that one case."""
    if is_of_gangs(case):
        return _refusal_by_ranks(case, backend)
    if case.kernel_type in DISTRIBUTE_KERNELS and (no := _refusal_of_world(1, backend)):
        return no
    if case.inputs is None:
        reason = "its inputs are unknown (N/A in the source)"
        return Refusal(Outcome.UNSUPPORTED, NO_INPUTS, reason)
    if why := of_graph_alone(case):
        return Refusal(Outcome.UNSUPPORTED, why, f"{why}: {case.describe()}")
    op = find(case.kernel_type)
    if op is None:
        reason = f"{NO_OPERATOR} for {case.kernel_type}"
        return Refusal(Outcome.UNSUPPORTED, NO_OPERATOR, reason)
    try:
        complaint, untold = op.complaint(case, backend), op.untold(case)
    except UNFORESEEN as error:
        logger.warning("%s cannot be checked: %r", case.describe(), error)
        return None
    if complaint:
        return Refusal(Outcome.REJECTED, complaint, f"{complaint}: {case.describe()}")
    return Refusal(Outcome.UNSUPPORTED, untold.partition(":")[0], untold) if untold else None


def refusal_on_ranks(case: Case, find: FindOperator, backend: str, ranks: int) -> Refusal | None:
    """Why so many ranks don't measure a case: nobody could, or they are no place for it. A plan may
    have had too few devices for it, or another state of the caches; a tree is measured on one."""
    return refusal(case, find, backend) or _refusal_of_place(case, ranks)


def _refusal_of_place(case: Case, ranks: int) -> Refusal | None:
    needed = ranks_of(case) if is_of_gangs(case) else 1
    if needed == ranks:
        return None
    reason = f"it needs {needed} ranks at once, and is given {ranks}"
    return Refusal(Outcome.UNSUPPORTED, NO_PLACE, reason)


def _refusal_by_ranks(case: Case, backend: str) -> Refusal | None:
    """What runs over ranks has no declaration: what can be run is what the bench knows by name."""
    try:
        ranks = ranks_of(case)
        mode = collective_case_of(case).mode if is_collective(case.kernel_type) else ""
    except BadInput as error:
        return Refusal(Outcome.REJECTED, NO_RANKS, str(error))
    if ranks < 2:
        return Refusal(Outcome.REJECTED, NO_RANKS, f"{ranks} rank: at least 2 are wanted")
    if case.kernel_type in DISTRIBUTE_KERNELS and (no := _refusal_of_world(ranks, backend)):
        return no
    if backend == "cpu" and ranks > MOST_CPU_RANKS:
        reason = f"{ranks} ranks: each is a process, and a cpu is given {MOST_CPU_RANKS} at most"
        return Refusal(Outcome.REJECTED, TOO_MANY_RANKS, reason)
    if mode == "kernel" and backend == "cpu":
        return Refusal(Outcome.REJECTED, NO_KERNEL, NO_KERNEL)
    return None


def _refusal_of_world(ranks: int, backend: str) -> Refusal | None:
    """Why an NPU exchanges no tokens of experts among so many ranks; a reference does."""
    if backend != "npu" or ranks in CANN_RANKS:
        return None
    reason = (
        f"{ranks} rank{'s' if ranks > 1 else ''}: CANN wants {CANN_RANKS[0]} to {CANN_RANKS[-1]}, "
        "16 or more for full mesh on A2; `EP Size`, or `collectives: {ep_size: N}` beside a "
        "profile, says of how many a row is"
    )
    return Refusal(Outcome.REJECTED, NO_SUCH_WORLD, reason)
