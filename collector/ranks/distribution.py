"""MoeDistributeDispatchV2 and MoeDistributeCombineV2 as plain values: the tensors of one rank.

The first sends each token to the ranks of its experts; the second brings their results back, and
sums them by the weights of the token's choices. Ascend 950 launches their V3 for the same calls,
whose first input is the context of the group (ops-transformer: V2 and V3 share an entry point).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from collector.codec.errors import BadInput
from collector.codec.text import MIB
from collector.model.case import Case, Shape, Slot, case_from_cells, shape_text, tensor_cells
from collector.model.vocabulary import EP_SIZE
from collector.ranks.experts import recorded_ranks

DISPATCH, COMBINE = "MoeDistributeDispatchV2", "MoeDistributeCombineV2"
DISPATCH_950, COMBINE_950 = "MoeDistributeDispatchV3", "MoeDistributeCombineV3"
OF_950: Mapping[str, str] = MappingProxyType({DISPATCH_950: DISPATCH, COMBINE_950: COMBINE})
DISTRIBUTE_KERNELS = (DISPATCH, COMBINE, *OF_950)
INFO = 128  # numbers of assist information for each row that a rank can get
# Optional tensors of a call. The counts of a tensor parallel world of one are given, or absent.
MASK, WEIGHTS, EXPAND_SCALES, TP_COUNTS = (
    *("x_active_mask", "expert_scales", "expand_scales", "tp_counts"),
)
OPTIONAL_INPUTS = {
    DISPATCH: {3: MASK, 4: WEIGHTS},
    COMBINE: {5: TP_COUNTS, 6: MASK, 10: EXPAND_SCALES},
}
_FLOAT_COPIES = 4
NOTHING = Slot(None, "DT_UNDEFINED", "NULL")


def without_context(case: Case) -> Case:
    """Return a row of Ascend 950 as that of the kernel of A2 and A3, without the group's context;
    other rows as they are."""
    if case.kernel_type not in OF_950:
        return case
    return replace(case, kernel_type=OF_950[case.kernel_type], inputs=(case.inputs or ())[1:])


@dataclass(frozen=True, slots=True)
class DistributeCall:
    """One call of `kernel`, the same on each rank. `tokens` (T) are one rank's, `experts` all
    ranks'; each token goes to `choices` (K) of them. A rank has space for `capacity` tokens of each
    rank, at least `tokens`. `is_int8`: a dispatch quantises the rows that it sends. `optional`
    lists the names of the optional tensors that are present. `context` is the shape of the first
    input on Ascend 950."""

    kernel: str
    tokens: int
    hidden: int
    experts: int
    choices: int
    ep_size: int
    capacity: int
    dtype: str = "DT_BF16"
    is_int8: bool = False
    optional: tuple[str, ...] = ()
    context: Shape = (1,)

    def __str__(self) -> str:
        how = " as INT8" if self.is_int8 else ""
        return (
            f"{self.kernel} of {self.tokens} tokens of {self.hidden}{how} and {self.choices} of "
            f"{self.experts} experts on {self.ep_size} ranks"
        )

    @property
    def sends(self) -> bool:
        """Return whether it is a dispatch, not a combine."""
        return self.kernel in (DISPATCH, DISPATCH_950)

    @property
    def local_experts(self) -> int:
        """Return the number of experts per rank: rank r has r x local_experts and the next ones."""
        return self.experts // self.ep_size

    @property
    def capacity_rows(self) -> int:
        """Return the rows that a rank has space for (A), for any choices of its tokens."""
        return self.capacity * self.ep_size * min(self.local_experts, self.choices)

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """Return the inputs of one rank, in the kernel's order; absent ones are empty."""
        ids = Slot((self.tokens, self.choices), "INT32", "ND")
        weights = Slot((self.tokens, self.choices), "FLOAT", "ND")
        mask = Slot((self.tokens,), "BOOL", "ND")
        if self.sends:
            x = Slot((self.tokens, self.hidden), self.dtype, "ND")
            found = [x, ids, NOTHING, mask, weights]
        else:
            rows, info, room = self._received(self.dtype)
            counts, tp = Slot((self.experts,), "INT32", "ND"), Slot((1,), "INT32", "ND")
            found = [rows, ids, info, counts, weights, tp, mask, *[NOTHING] * 3, room]
        for at, name in OPTIONAL_INPUTS[OF_950.get(self.kernel, self.kernel)].items():
            if name not in self.optional:
                found[at] = NOTHING
        context = [Slot(self.context, "INT32", "ND")] if self.kernel in OF_950 else []
        return (*context, *found)

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """Return the outputs: of a dispatch the rows by expert and rank, their scales, their
        origins, the number of rows of each expert, the ends of each expert's and rank's rows, and
        weights; of a combine the tokens."""
        if not self.sends:
            return (Slot((self.tokens, self.hidden), self.dtype, "ND"),)
        rows, info, room = self._received("INT8" if self.is_int8 else self.dtype)
        return (
            rows,
            room,
            info,
            Slot((self.local_experts,), "INT64", "ND"),
            Slot((self.experts,), "INT32", "ND"),
            Slot((int(TP_COUNTS in self.optional),), "INT32", "ND"),
            room,
        )

    @property
    def cells(self) -> dict[str, str]:
        """Return the cells of a row, including `EP Size`."""
        return {**tensor_cells(self.inputs, self.outputs), EP_SIZE: str(self.ep_size)}

    @property
    def case(self) -> Case:
        """Return the case of such a row."""
        return case_from_cells(self.kernel, self.cells)

    @property
    def buffsize_mb(self) -> int:
        """Return the HCCL_BUFFSIZE in MiB that CANN's documents require: for A3 two windows for
        the sent and the returned rows, each token at a whole 512 bytes, for A2 two windows for the
        rows that a rank can get. The larger value is used."""
        row_bytes = 2 * self.hidden
        there_bytes = self.local_experts * self.ep_size * _up(_up(row_bytes, 32) + 64, 512)
        back_bytes = (self.choices + 1) * _up(row_bytes, 512)  # and of a shared expert
        of_a3 = 2 * self.capacity * (there_bytes + back_bytes)
        of_a2 = 2 * (self.capacity_rows * row_bytes + 2 * MIB)
        return -(-max(of_a2, of_a3) // MIB)

    def rank_bytes(self, rows: int) -> int:
        """Return approximately the memory of a reference rank that gets `rows` rows: its tensors,
        and the rows in transfer as FLOAT."""
        own = sum(slot.size_bytes for slot in (*self.inputs, *self.outputs))
        return own + _FLOAT_COPIES * rows * self.hidden * 4

    def _received(self, dtype: str) -> tuple[Slot, Slot, Slot]:
        """Return the rows that a rank has space for, their origins, and one number for each."""
        room = self.capacity_rows
        return (
            Slot((room, self.hidden), dtype, "ND"),
            Slot((room * INFO,), "INT32", "ND"),
            Slot((room,), "FLOAT", "ND"),
        )


def _up(size_bytes: int, multiple: int) -> int:
    return -(-size_bytes // multiple) * multiple


# A row of MoeDistributeDispatchV2 or MoeDistributeCombineV2, read as a call of several ranks.
#
# A row's tensors are one rank's: `EP Size` records the number of ranks, and so do the counts of a
# dispatch.

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
_MOST_CHOICES = 16
_HIERARCHY_RANKS = 8  # from here on, weights select another layout of counts
_MOST_EXPERTS, _MOST_ROWS = 1 << 16, 1 << 24


def is_of_one_rank(case: Case) -> bool:
    """Return whether a row of these kernels is of one rank: `EP Size` is 1, or it is absent and the
    shapes fit only one rank."""
    case = without_context(case)
    if (values := case.attribute(EP_SIZE)) is not None:
        return values == "1"
    if case.kernel_type == DISPATCH:
        counts, ends = _shape(case.outputs, 3), _shape(case.outputs, 4)
        return len(counts) != 1 or len(ends) != 1 or counts == ends
    rows, ids, ends = (_shape(case.inputs, at) for at in (0, 1, 3))
    if len(rows) != 2 or len(ids) != 2 or len(ends) != 1:
        return True
    return rows[0] == ids[0] * min(ids[1], ends[0])


def records_ranks(case: Case) -> bool:
    """Return whether a row's own cells determine its number of ranks: by `EP Size`, by the counts
    of a dispatch, or by the shapes of a combine if they can be one rank's."""
    case = without_context(case)
    if case.attribute(EP_SIZE) is None and case.kernel_type == DISPATCH:
        return all(len(_shape(case.outputs, at)) == 1 for at in (3, 4))
    return case.attribute(EP_SIZE) is not None or is_of_one_rank(case)


def distribute_call(case: Case) -> DistributeCall:
    """Return the call of a row. Raises BadInput, with the tensor and its constraint, for a row with
    contradictory tensors or without the number of ranks."""
    kernel, context = case.kernel_type, _shape(case.inputs, 0)
    if kernel in OF_950 and _dtype(case.inputs, 0) != "INT32":
        raise BadInput(f"{case.describe()}: context: expected INT32 first")
    case = without_context(case)
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
        case.kernel_type,  # of A2 and A3, whose tensors are checked
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
    of_row = replace(call, kernel=kernel, context=context) if kernel in OF_950 else call
    _check(case, of_row)
    _check_agrees(case, call)
    return of_row


def _ranks(case: Case) -> int:
    if case.attribute(EP_SIZE) is None and case.kernel_type == DISPATCH:
        counts, ends = (_shape_of(case, case.outputs, at, 1)[0] for at in (3, 4))
        if counts and not ends % counts:
            return ends // counts
    return recorded_ranks(case)


def _given(case: Case) -> list[str]:
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
    if call.experts > _MOST_EXPERTS or call.capacity_rows > _MOST_ROWS:
        raise BadInput(
            f"{where}: expected at most {_MOST_EXPERTS} experts and {_MOST_ROWS} rows, got "
            f"{call.experts} and {call.capacity_rows}"
        )
    is_split = WEIGHTS in call.optional and call.ep_size >= _HIERARCHY_RANKS
    if call.kernel == DISPATCH and is_split:
        raise BadInput(
            f"{where}: {WEIGHTS} are not supported for {_HIERARCHY_RANKS} ranks or more: they "
            "select the hierarchical layout of nodes"
        )


def _check_agrees(case: Case, call: DistributeCall) -> None:
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
    """Return a tensor's shape; without dimensions if it is absent."""
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
    """Return a tensor's dtype as profilers spell it; empty if unknown."""
    known = slots[at].known_dtype if slots is not None and at < len(slots) else None
    return known.spelling if known else ""
