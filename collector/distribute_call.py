"""MoeDistributeDispatchV2 and MoeDistributeCombineV2 as plain values: what one rank gives to them.

The first sends each token to the ranks of its experts, the second brings back what those made of
it, and sums it by the weights of the token's choices.
"""

from dataclasses import dataclass

from collector.case import Case, Slot, case_from_cells, tensor_cells
from collector.units import MIB
from collector.vocabulary import EP_SIZE

DISPATCH, COMBINE = "MoeDistributeDispatchV2", "MoeDistributeCombineV2"
DISTRIBUTE_KERNELS = (DISPATCH, COMBINE)
INFO = 128  # numbers of assist information for each row that a rank can get
# What a call may be without. The counts of a tensor parallel world of one are given, or not made.
MASK, WEIGHTS, EXPAND_SCALES, TP_COUNTS = (
    *("x_active_mask", "expert_scales", "expand_scales", "tp_counts"),
)
OPTIONAL_INPUTS = {
    DISPATCH: {3: MASK, 4: WEIGHTS},
    COMBINE: {5: TP_COUNTS, 6: MASK, 10: EXPAND_SCALES},
}
_FLOAT_COPIES = 4
NOTHING = Slot(None, "DT_UNDEFINED", "NULL")


@dataclass(frozen=True, slots=True)
class DistributeCall:
    """One call of `kernel`, the same on each rank. `tokens` (T) are one rank's, `experts` all
    ranks'; each token goes to `choices` (K) of them. There is room for `capacity` tokens of each
    rank, `tokens` at least. `is_int8`: a dispatch quantises what it sends. `optional` are those of
    its tensors that need not be there, by name."""

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

    def __str__(self) -> str:
        how = " as INT8" if self.is_int8 else ""
        return (
            f"{self.kernel} of {self.tokens} tokens of {self.hidden}{how} and {self.choices} of "
            f"{self.experts} experts on {self.ep_size} ranks"
        )

    @property
    def local_experts(self) -> int:
        """The experts of one rank: rank r has r x local_experts and those that follow."""
        return self.experts // self.ep_size

    @property
    def room(self) -> int:
        """The rows that a rank has room for (A), whatever its tokens choose."""
        return self.capacity * self.ep_size * min(self.local_experts, self.choices)

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """The inputs of one rank, in the kernel's order, those left out being empty."""
        ids = Slot((self.tokens, self.choices), "INT32", "ND")
        weights = Slot((self.tokens, self.choices), "FLOAT", "ND")
        mask = Slot((self.tokens,), "BOOL", "ND")
        if self.kernel == DISPATCH:
            x = Slot((self.tokens, self.hidden), self.dtype, "ND")
            found = [x, ids, NOTHING, mask, weights]
        else:
            rows, info, room = self._received(self.dtype)
            counts, tp = Slot((self.experts,), "INT32", "ND"), Slot((1,), "INT32", "ND")
            found = [rows, ids, info, counts, weights, tp, mask, *[NOTHING] * 3, room]
        for at, name in OPTIONAL_INPUTS[self.kernel].items():
            if name not in self.optional:
                found[at] = NOTHING
        return tuple(found)

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """Of a dispatch the rows by expert and rank, their scales, whence they came, how many each
        expert got, where those of each expert and rank end, and weights; of a combine the tokens.
        """
        if self.kernel == COMBINE:
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
        """The cells of a row, `EP Size` among them."""
        return {**tensor_cells(self.inputs, self.outputs), EP_SIZE: str(self.ep_size)}

    @property
    def case(self) -> Case:
        """The case of such a row."""
        return case_from_cells(self.kernel, self.cells)

    @property
    def buffsize_mb(self) -> int:
        """HCCL_BUFFSIZE in MiB that CANN's documents want: of A3 two windows for what is sent and
        given back, each token at a whole 512 bytes, of A2 two windows for what a rank can get. The
        larger is taken."""
        row_bytes = 2 * self.hidden
        there_bytes = self.local_experts * self.ep_size * _up(_up(row_bytes, 32) + 64, 512)
        back_bytes = (self.choices + 1) * _up(row_bytes, 512)  # and of a shared expert
        of_a3 = 2 * self.capacity * (there_bytes + back_bytes)
        of_a2 = 2 * (self.room * row_bytes + 2 * MIB)
        return -(-max(of_a2, of_a3) // MIB)

    def rank_bytes(self, rows: int) -> int:
        """About what one rank of the reference holds that gets so many rows: its tensors, and the
        rows on their way as FLOAT."""
        own = sum(slot.size_bytes for slot in (*self.inputs, *self.outputs))
        return own + _FLOAT_COPIES * rows * self.hidden * 4

    def _received(self, dtype: str) -> tuple[Slot, Slot, Slot]:
        """Rows that a rank has room for, whence they came, and one number for each."""
        room = self.room
        return (
            Slot((room, self.hidden), dtype, "ND"),
            Slot((room * INFO,), "INT32", "ND"),
            Slot((room,), "FLOAT", "ND"),
        )


def _up(size_bytes: int, multiple: int) -> int:
    return -(-size_bytes // multiple) * multiple
