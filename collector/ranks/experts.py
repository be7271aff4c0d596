"""DispatchFFNCombine as plain values: the tensors of one rank, and the call of a row.

One call sends each token to the ranks of its experts, which compute gate_up, SwiGLU and down, and
brings the weighted sum back. A row's inputs are one rank's: `EP Size` records the number of ranks,
and the number of all experts is that of the weights times `EP Size`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from collector.codec.errors import BadInput
from collector.codec.text import MIB
from collector.model.case import Case, Slot, case_from_cells, shape_text, tensor_cells
from collector.model.lookup import make_lookups
from collector.model.vocabulary import EP_SIZE, FRACTAL_NZ, RUNTIME_PREFIX, Dtype, dtype_of

KERNEL = "DispatchFFNCombine"
# The extension launches another kernel if the weights are not INT8.
KERNEL_FLOATING, KERNEL_INT4 = "DispatchFFNCombineBF16", "DispatchFFNCombineW4A8"
KERNELS = (KERNEL, KERNEL_FLOATING, KERNEL_INT4)
# The operator of a model that a consumer looks up in each.
LOOKUPS = MappingProxyType(
    {
        kernel: make_lookups(
            f"tensor_cast.dispatch_ffn_combine{weights}.default",
            query_mode="moe_fused",
            project_full_shape=True,
        )
        for kernel, weights in zip(KERNELS, ("_quant", "", "_quant_int4"), strict=True)
    }
)
_KERNEL_BY_BITS = MappingProxyType({4: KERNEL_INT4, 8: KERNEL, 16: KERNEL_FLOATING})
# Columns of rows whose tokens are spread unevenly: the imbalance, or the replayed loads.
IMBALANCE, EXPERT_LOADS = RUNTIME_PREFIX + "imbalance", RUNTIME_PREFIX + "expert_loads"
_IMBALANCE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
_MOST_EXPERTS, _MOST_ROWS = 1 << 16, 1 << 24  # of all ranks: each process holds the whole routing
_TOKENS_DTYPES = ("DT_BF16", "FLOAT16")
_INPUTS = ("x", "weight1", "weight2", "expert_idx", "scale1", "scale2", "probs")
_INPUTS_OF_INT4 = (*_INPUTS[:-1], "bias1", "bias2", "probs", "x_active_mask")
_COLUMNS_OF_INT4 = 8  # in an INT32
_COPIES = 2  # of weights while they are created
_BUFFER_COPIES = 3  # of M x top-k x hidden bytes, from the operator's own check
_BUFFER_REST_BYTES = 10 * MIB
HCCL_BUFFSIZE_MB = 200  # HCCL's default
LARGEST_BUFFSIZE_MB = 65_535  # the operator reads it into 16 bits, and uses its default beyond


class BufferedCall(Protocol):
    """A call of ranks that write into each other's buffers."""

    @property
    def buffsize_mb(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ExpertCall:
    """One call, the same on each rank. `tokens` (M) are one rank's, `experts` all ranks'; each
    token goes to `choices` (top-k) of them. `hidden` (H) is the size of a token, `intermediate`
    that of an expert's intermediate values, half of N. `dtype` is that of a token; weights are INT4
    or INT8 (`weight_bits` 4 or 8), or have the same dtype (16)."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    choices: int
    ep_size: int
    weight_bits: int = 8
    dtype: str = "DT_BF16"

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens of {self.hidden} to {self.choices} of {self.experts} experts of "
            f"{self.intermediate} ({self.weight_dtype}) on {self.ep_size} ranks"
        )

    @property
    def is_int8(self) -> bool:
        """Return whether tokens are sent as INT8."""
        return self.weight_bits < 16

    @property
    def weight_dtype(self) -> str:
        """Return the dtype of the weights."""
        return f"INT{self.weight_bits}" if self.is_int8 else self.dtype

    @property
    def kernel(self) -> str:
        """Return the kernel type that the extension launches."""
        return _KERNEL_BY_BITS[self.weight_bits]

    @property
    def local_experts(self) -> int:
        """Return the number of experts per rank: rank r has r x local_experts and the next ones."""
        return self.experts // self.ep_size

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """Return the inputs of one rank, in the operator's order: seven, and two biases for INT4.
        Scales are one number for each column of each expert, whose FLOAT is the lower half of an
        INT64; weights of the tokens' dtype have them, too, but they are not read, and vLLM-Ascend
        passes tensors without elements."""
        local, wide = self.local_experts, 2 * self.intermediate
        weight = self.weight_dtype
        biases = (Slot((local, wide), "FLOAT", "ND"), Slot((local, self.hidden), "FLOAT", "ND"))
        return (
            Slot((self.tokens, self.hidden), self.dtype, "ND"),
            Slot((local, self.hidden, wide), weight, FRACTAL_NZ),
            Slot((local, self.intermediate, self.hidden), weight, FRACTAL_NZ),
            Slot((self.tokens, self.choices), "INT32", "ND"),
            Slot((local * wide,), "INT64", "ND"),
            Slot((local * self.hidden,), "INT64", "ND"),
            *(biases if self.weight_bits == 4 else ()),
            Slot((self.tokens, self.choices), "FLOAT", "ND"),
        )

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """Return the tokens again, and the number of rows of each expert of the rank."""
        return (
            Slot((self.tokens, self.hidden), self.dtype, "ND"),
            Slot((self.local_experts,), "INT32", "ND"),
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
        """Return the HCCL_BUFFSIZE in MiB that the operator requires. Its releases add 3 or 10 MiB
        to three times the bytes of the rows that a rank sends: the larger value is used."""
        rows_bytes = self.tokens * self.choices * self.hidden
        return -(-(_BUFFER_COPIES * rows_bytes + _BUFFER_REST_BYTES) // MIB)

    @property
    def working_bytes(self) -> int:
        """Return approximately the memory of a reference rank with even loads: its inputs, and the
        rows that it sends, gets, returns and gets back."""
        inputs = sum(slot.size_bytes for slot in self.inputs)
        return inputs + 4 * self.choices * self.outputs[0].size_bytes

    def rank_bytes(self, rows: int) -> int:
        """Return the same for a rank that gets `rows` rows, with its weights twice, while they are
        created."""
        uneven_bytes = max(0, rows - self.tokens * self.choices) * self.outputs[0].size_bytes
        return _COPIES * (self.working_bytes + 4 * uneven_bytes // self.tokens)


def check_expert_call(call: ExpertCall) -> None:
    """Raise BadInput, with the violated constraint, for an invalid call."""
    for name in ("tokens", "hidden", "intermediate", "experts", "choices", "ep_size"):
        if getattr(call, name) < 1:
            raise BadInput(f"{name}: expected at least 1, got {getattr(call, name)}")
    if call.weight_bits not in _KERNEL_BY_BITS:
        raise BadInput(f"weight_bits: expected 4, 8 or 16, got {call.weight_bits}")
    if call.weight_bits == 4 and (call.hidden | 2 * call.intermediate) % _COLUMNS_OF_INT4:
        raise BadInput(
            f"{call}: expected sizes of INT4 weights that are multiples of {_COLUMNS_OF_INT4}"
        )
    if call.dtype not in _TOKENS_DTYPES:
        raise BadInput(f"dtype: expected {' or '.join(_TOKENS_DTYPES)}, got {call.dtype!r}")
    if call.experts % call.ep_size:
        raise BadInput(f"experts ({call.experts}) must be divisible by ep_size ({call.ep_size})")
    if call.choices > call.experts:
        raise BadInput(f"choices: expected at most {call.experts} (experts), got {call.choices}")
    if call.buffsize_mb > LARGEST_BUFFSIZE_MB:
        raise BadInput(
            f"{call}: expected HCCL_BUFFSIZE of at most {LARGEST_BUFFSIZE_MB} MiB, the call "
            f"requires {call.buffsize_mb} MiB"
        )
    if call.experts > _MOST_EXPERTS or call.tokens * call.choices * call.ep_size > _MOST_ROWS:
        raise BadInput(
            f"{call}: expected at most {_MOST_EXPERTS} experts and {_MOST_ROWS} rows, got "
            f"{call.experts} and {call.tokens * call.choices * call.ep_size}"
        )


def largest_buffsize_mb(calls: Iterable[BufferedCall]) -> int:
    """Return an HCCL_BUFFSIZE, in MiB, that is large enough for all calls; at least HCCL's
    default."""
    return max([HCCL_BUFFSIZE_MB, *(call.buffsize_mb for call in calls)])


def call_of(case: Case) -> ExpertCall:
    """Return the call of a row. Raises BadInput, with the input and its constraint, for a row with
    contradictory tensors or without `EP Size`."""
    ranks, slots, names = recorded_ranks(case), case.inputs or (), _names(case)
    if len(slots) != len(names):
        raise BadInput(f"{case.describe()}: expected {len(names)} inputs, got {len(slots)}")
    shapes = {name: slot.shape or () for name, slot in zip(names, slots, strict=True)}
    for name, rank in (("x", 2), ("weight1", 3), ("weight2", 3), ("expert_idx", 2)):
        shapes[name] = _of_rank(case, name, shapes[name], rank)
    (tokens, hidden), (local, _, wide) = shapes["x"], shapes["weight1"]
    call = ExpertCall(
        tokens,
        hidden,
        wide // 2,
        local * ranks,
        shapes["expert_idx"][1],
        ranks,
        weight_bits=min(_dtype(case, slots[1]).item_bits, 16),
        dtype=_dtype(case, slots[0]).spelling,
    )
    check_expert_call(call)
    if call.kernel != case.kernel_type:
        raise BadInput(
            f"{case.describe()}: expected kernel type {call.kernel} for these weights, got "
            f"{case.kernel_type}"
        )
    _check_agrees(case, call, shapes)
    return call


def recorded_ranks(case: Case) -> int:
    """Return the number of ranks that a row records. Raises BadInput without one."""
    text = case.attribute(EP_SIZE)
    if text is None or not re.fullmatch("[1-9][0-9]{0,4}", text):
        got = "no value" if text is None else repr(text[:40])
        raise BadInput(
            f"{case.describe()}: {EP_SIZE}: expected the number of ranks, 1 to 99999, got {got}"
        )
    return int(text)


def imbalance_of(case: Case) -> float:
    """Return the imbalance of a row's tokens over experts, 0 without such a column. Raises BadInput
    for a row of replayed loads, which the row does not contain."""
    text = case.attribute(IMBALANCE) or "0"
    if case.attribute(EXPERT_LOADS):
        raise BadInput(
            f"{case.describe()}: {EXPERT_LOADS} is not supported; use {IMBALANCE}, a number"
        )
    if not _IMBALANCE.fullmatch(text):
        raise BadInput(f"{case.describe()}: {IMBALANCE}: expected a number, got {text[:40]!r}")
    return float(text)


def _of_rank(case: Case, name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the shape without a leading batch of 1, which some rows have."""
    plain = shape[1:] if len(shape) == rank + 1 and shape[0] == 1 else shape
    if len(plain) != rank:
        raise BadInput(f"{case.describe()}: {name}: expected {rank} dimensions, got {len(plain)}")
    return plain


def _names(case: Case) -> tuple[str, ...]:
    """Return the names of a row's inputs; the mask is not replayed, and its cell may be absent."""
    if case.kernel_type != KERNEL_INT4:
        return _INPUTS
    slots = case.inputs or ()
    if len(slots) == len(_INPUTS_OF_INT4) and slots[-1].shape is not None:
        raise BadInput(f"{case.describe()}: x_active_mask: expected no mask: it is not replayed")
    return _INPUTS_OF_INT4 if len(slots) == len(_INPUTS_OF_INT4) else _INPUTS_OF_INT4[:-1]


def _dtype(case: Case, slot: Slot) -> Dtype:
    found = dtype_of(slot.dtype)
    if found is None:
        raise BadInput(f"{case.describe()}: unknown dtype {slot.dtype!r}")
    if found.held_as and found.spelling != "INT4":
        raise BadInput(f"{case.describe()}: {found.spelling} is not supported: {found.held_as}")
    return found


def _check_agrees(case: Case, call: ExpertCall, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise BadInput if one of the inputs differs from that of the call. Scales may have one row
    for each expert, and a dimension of 1; those that are not read may be empty."""
    for name, slot, of_row in zip(shapes, call.inputs, case.inputs or (), strict=False):
        if not name.startswith("scale") and of_row.known_dtype != slot.known_dtype:
            raise BadInput(
                f"{case.describe()}: {name}: expected dtype {slot.dtype}, got {of_row.dtype!r}"
            )
        expected, got = slot.shape or (), shapes[name]
        if name.startswith("scale") and not (call.is_int8 or got):
            continue
        columns = expected[0] // call.local_experts
        by_expert = ((call.local_experts, columns), (call.local_experts, 1, columns))
        if got != expected and not (name.startswith("scale") and got in by_expert):
            raise BadInput(
                f"{case.describe()}: {name}: expected {shape_text(expected)}, which follows from "
                f"the other inputs, got {shape_text(got) or '()'}"
            )
