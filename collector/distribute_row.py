"""A row of MoeDistributeDispatchV2 or MoeDistributeCombineV2, read as a call of several ranks.

A row's tensors are one rank's: `EP Size` says how many ranks there are, as the counts of a dispatch
do by themselves.
"""

import re

from collector.case import Case, Slot, shape_text
from collector.distribute_call import (
    COMBINE,
    DISPATCH,
    EXPAND_SCALES,
    MASK,
    NOTHING,
    OPTIONAL_INPUTS,
    TP_COUNTS,
    WEIGHTS,
    DistributeCall,
)
from collector.errors import BadInput
from collector.vocabulary import EP_SIZE

_TP_OUTPUT = 5  # of a dispatch
_INPUT_NAMES = {
    DISPATCH: ("x", "expert_ids", "scales", MASK, WEIGHTS),
    COMBINE: (
        *("expand_x", "expert_ids", "assist_info_for_combine", "ep_send_counts"),
        *(WEIGHTS, "tp_send_counts", MASK, "activation_scale", "weight_scale", "group_list"),
        EXPAND_SCALES,
    ),
}
_OUTPUT_NAMES = {
    DISPATCH: (
        *("expand_x", "dynamic_scales", "assist_info_for_combine", "expert_token_nums"),
        *("ep_recv_counts", "tp_recv_counts", EXPAND_SCALES),
    ),
    COMBINE: ("x",),
}
_TOKENS_DTYPES = ("DT_BF16", "FLOAT16")
_MOST_CHOICES = 8
_HIERARCHY_RANKS = 8  # from here on, weights ask for another layout of counts
_MOST_EXPERTS, _MOST_ROWS = 1 << 16, 1 << 24


def is_of_one_rank(case: Case) -> bool:
    """Whether a row of these kernels is of no gang: `EP Size` says 1, or nothing, and its
    shapes are no others'."""
    if (told := case.attribute(EP_SIZE)) is not None:
        return told == "1"
    if case.kernel_type == DISPATCH:
        counts, ends = _shape(case.outputs, 3), _shape(case.outputs, 4)
        return len(counts) != 1 or len(ends) != 1 or counts == ends
    rows, ids, ends = (_shape(case.inputs, at) for at in (0, 1, 3))
    if len(rows) != 2 or len(ids) != 2 or len(ends) != 1:
        return True
    return rows[0] == ids[0] * min(ids[1], ends[0])


def tells_ranks(case: Case) -> bool:
    """Whether a row's own cells say how many ranks it is of: `EP Size` does, the counts of a
    dispatch do, and the shapes of a combine where they can be one rank's."""
    if case.attribute(EP_SIZE) is None and case.kernel_type == DISPATCH:
        return all(len(_shape(case.outputs, at)) == 1 for at in (3, 4))
    return case.attribute(EP_SIZE) is not None or is_of_one_rank(case)


def distribute_call(case: Case) -> DistributeCall:
    """Return the call of a row. Raises BadInput, with the tensor and its constraint, for a row with
    contradictory tensors or without the number of ranks."""
    ranks = _ranks(case)
    ids = _shape_of(case, case.inputs, 1, 2)
    if case.kernel_type == DISPATCH:
        tokens = _shape_of(case, case.inputs, 0, 2)
        rows = _shape_of(case, case.outputs, 0, 2)
        experts = _shape_of(case, case.outputs, 3, 1)[0] * ranks
        is_int8 = _dtype(case.outputs, 0) == "INT8"
    else:
        rows = tokens = _shape_of(case, case.inputs, 0, 2)
        experts, is_int8 = _shape_of(case, case.inputs, 3, 1)[0], False
    share = ranks * min(experts // ranks, ids[1])
    call = DistributeCall(
        case.kernel_type,
        ids[0],
        tokens[1],
        experts,
        ids[1],
        ranks,
        rows[0] // share if share else 0,
        _dtype(case.inputs, 0),
        is_int8,
        tuple(sorted(_given(case))),
    )
    _check(case, call)
    _check_agrees(case, call)
    return call


def _ranks(case: Case) -> int:
    text = case.attribute(EP_SIZE)
    if text is None and case.kernel_type == DISPATCH:
        counts, ends = (_shape_of(case, case.outputs, at, 1)[0] for at in (3, 4))
        if counts and not ends % counts:
            return ends // counts
    if text is None or not re.fullmatch("[1-9][0-9]{0,4}", text):
        got = "no value" if text is None else repr(text[:40])
        raise BadInput(
            f"{case.describe()}: {EP_SIZE}: expected the number of ranks, 1 to 99999, got {got}"
        )
    return int(text)


def _given(case: Case) -> list[str]:
    """The names of what need not be there and is."""
    found = [
        name
        for at, name in OPTIONAL_INPUTS[case.kernel_type].items()
        if at < len(case.inputs or ()) and (case.inputs or ())[at].shape is not None
    ]
    if case.kernel_type == DISPATCH and _shape(case.outputs, _TP_OUTPUT) == (1,):
        found.append(TP_COUNTS)
    return found


def _check(case: Case, call: DistributeCall) -> None:
    where = case.describe()
    for name in ("tokens", "hidden", "experts", "choices"):
        if getattr(call, name) < 1:
            raise BadInput(f"{where}: {name}: expected at least 1, got {getattr(call, name)}")
    if call.dtype not in _TOKENS_DTYPES:
        raise BadInput(
            f"{where}: dtype of tokens: expected {' or '.join(_TOKENS_DTYPES)}, got {call.dtype!r}"
        )
    if call.experts % call.ep_size:
        raise BadInput(
            f"{where}: experts ({call.experts}) must be divisible by the ranks ({call.ep_size})"
        )
    if call.choices > min(_MOST_CHOICES, call.experts):
        raise BadInput(
            f"{where}: expected at most {min(_MOST_CHOICES, call.experts)} experts for each token, "
            f"got {call.choices}"
        )
    if call.capacity < call.tokens:
        raise BadInput(
            f"{where}: expected a capacity of at least the {call.tokens} tokens of every rank, got "
            f"{call.capacity}"
        )
    if call.experts > _MOST_EXPERTS or call.room > _MOST_ROWS:
        raise BadInput(
            f"{where}: expected at most {_MOST_EXPERTS} experts and {_MOST_ROWS} rows, got "
            f"{call.experts} and {call.room}"
        )
    if call.kernel == DISPATCH and WEIGHTS in call.optional and call.ep_size >= _HIERARCHY_RANKS:
        raise BadInput(
            f"{where}: {WEIGHTS} are not supported for {_HIERARCHY_RANKS} ranks or more: they "
            "select the hierarchical layout of nodes"
        )


def _check_agrees(case: Case, call: DistributeCall) -> None:
    """Raise BadInput if a tensor differs from that of the call."""
    sides = (
        (_INPUT_NAMES[call.kernel], call.inputs, case.inputs or ()),
        (_OUTPUT_NAMES[call.kernel], call.outputs, case.outputs),
    )
    for names, expected, got in sides:
        if got is None:  # the profile did not record the outputs
            continue
        padded = [*got, *[NOTHING] * (len(expected) - len(got))]
        if any(slot.shape is not None for slot in padded[len(expected) :]):
            raise BadInput(
                f"{case.describe()}: expected the tensors {', '.join(names)}, got further tensors"
            )
        for name, slot, of_row in zip(names, expected, padded, strict=False):
            if of_row.shape != slot.shape or of_row.known_dtype != slot.known_dtype:
                raise BadInput(
                    f"{case.describe()}: {name}: expected {_slot_text(slot)}, which follows from "
                    f"the other tensors, got {_slot_text(of_row)}"
                )


def _slot_text(slot: Slot) -> str:
    return "no tensor" if slot.shape is None else f"{shape_text(slot.shape)} {slot.dtype}"


def _shape(slots: tuple[Slot, ...] | None, at: int) -> tuple[int, ...]:
    """A tensor's shape; of none dimensions where it is not there."""
    return (slots[at].shape or ()) if slots is not None and at < len(slots) else ()


def _shape_of(case: Case, slots: tuple[Slot, ...] | None, at: int, rank: int) -> tuple[int, ...]:
    names = (_INPUT_NAMES if slots is case.inputs else _OUTPUT_NAMES)[case.kernel_type]
    shape = _shape(slots, at)
    if len(shape) != rank:
        raise BadInput(
            f"{case.describe()}: {names[at]}: expected {rank} dimensions, got {len(shape)}"
        )
    return shape


def _dtype(slots: tuple[Slot, ...] | None, at: int) -> str:
    """A tensor's dtype as profilers spell it; empty where it is not known."""
    known = slots[at].known_dtype if slots is not None and at < len(slots) else None
    return known.spelling if known else ""
