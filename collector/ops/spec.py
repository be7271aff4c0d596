"""What a declaration of an operator says: an `OpSpec` in a module of a family of `catalog/`.

A declaration is data and a few small functions that receive torch, never import it, so that a
laptop without torch can list, plan and check operators.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from collector.codec.errors import CaseRejected
from collector.model.case import Case
from collector.model.measurement import Library
from collector.model.vocabulary import FRACTAL_NZ, GRAPH, LAUNCHED_BY, LIBRARY, is_plain_format
from collector.ops.slots import dtype_complaint

# Whose a function is that launches a kernel, and whose kernel a case asks for.


def library_of(call: str) -> str:
    """What holds a function: torch, torch_npu or vllm-ascend."""
    if call.startswith(("torch.ops._C_ascend.", "torch.ops.vllm.", "vllm_ascend.")):
        return "vllm-ascend"
    is_npu = call.startswith(("torch_npu.", "torch.ops.npu.", "torch.ops.atb."))
    return "torch_npu" if is_npu else "torch"


def library_complaint(case: Case, backend: str, call: str, served: str) -> str:
    """Why nobody has the kernel of the library that a case asks for; empty where it asks for none,
    or somebody has it."""
    asked = case.attribute(LIBRARY)
    if asked is None:
        return ""
    if backend != "npu":
        return f"kernels of {asked} are asked for; {backend} has no such library"
    known = _with_a_kernel(call, served)
    if asked in known:
        return ""
    return f"a kernel of {' or '.join(sorted(known))} is wanted, not one of {asked}"


def _with_a_kernel(call: str, served: str) -> frozenset[str]:
    """Whose kernels of a type there are: CANN's, vLLM-Ascend's or those of both. `call` is the
    function of one of them, `served` vLLM-Ascend's beside CANN's, where it has one."""
    of_vllm_ascend = library_of(call) == Library.VLLM_ASCEND
    own = {Library.VLLM_ASCEND} if of_vllm_ascend or served else set()
    return frozenset(own if of_vllm_ascend else {Library.CANN, *own})


class TensorMaker(Protocol):
    """Makes the tensors of one case on the device, seeded by the case.

    `dtype` is always a profiler's spelling. Where the device computes a 16-bit type in float32
    (and the operator does not merely move data) the tensors are float32 already: `dtype()` tells.
    """

    torch: Any

    def dtype(self, spelling: str) -> Any:
        """The torch dtype that stands for a spelling on this device."""

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        """Random numbers: N(0, 1) for floats, small integers, coin flips for BOOL."""

    def uniform(self, shape: Sequence[int], dtype: str, low: float, high: float) -> Any: ...

    def integers(self, shape: Sequence[int], dtype: str, low: int, high: int) -> Any:
        """Random integers of [low, high)."""

    def permutation(self, n: int, dtype: str) -> Any: ...

    def full(self, shape: Sequence[int], dtype: str, value: float) -> Any: ...

    def empty(self, shape: Sequence[int], dtype: str) -> Any: ...

    def tensor(self, values: Sequence[Any], dtype: str) -> Any:
        """These numbers, from the host: tables of indices and lengths."""

    def stored(self, tensor: Any, format: str) -> Any:
        """The tensor in a slot's format: FRACTAL_NZ or NC1HWC0 on an NPU, elsewhere as it is."""


@dataclass(frozen=True, slots=True)
class Call:
    """What every launch of a case passes: built once, used for each repeat."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Need(StrEnum):
    """What an NPU host must have for an operator, besides CANN and torch_npu."""

    ATB = "ATB (Ascend Transformer Boost, in CANN's nnal package)"
    CUSTOM_OPP = "custom OPP of vLLM-Ascend (ASCEND_CUSTOM_OPP_PATH)"
    VLLM_ASCEND = "vllm_ascend, whose library registers torch.ops._C_ascend"
    TRITON = "Triton kernels of vLLM-Ascend (triton-ascend)"
    TORCHAIR = "torchair (protobuf beside torch_npu)"


def call_plainly(api: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The function with the arguments as they were built."""
    return api(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class GraphCall:
    """How a kernel is launched that only a graph of CANN (GE) has: the one operator is compiled by
    torchair, whose converters name the op of each call.

    takes  whether a case is of a graph: by its kernel type, or by slots as graphs leave them
    run    (api, *args, **kwargs) -> outputs: what is compiled
    build  (case, make) -> Call, where it wants other arguments than a launch by itself
    """

    takes: Callable[[Case], bool]
    run: Callable[..., Any] = call_plainly
    build: "Callable[[Case, TensorMaker], Call] | None" = None


@dataclass(frozen=True, slots=True)
class NpuCall:
    """How an NPU host launches the operator, beside the function that `OpSpec.call` names.

    run    (api, *args, **kwargs) -> outputs in the row's order, None for an absent one; `api` is
           that function. The default passes everything on
    build  (case, make) -> Call, where the function's arguments are not those of the reference
    needs  what the host must have
    nz     the input slots that may be FRACTAL_NZ
    converts  the cases whose tensors in FRACTAL_NZ the runtime makes of plain ones
    graph  how a graph launches it, where the function by itself does not
    served the function by which vLLM-Ascend serves with a kernel of the same name out of its own
           library, where its releases have one: `run` calls it too
    """

    run: Callable[..., Any] = call_plainly
    build: "Callable[[Case, TensorMaker], Call] | None" = None
    needs: frozenset[Need] = frozenset()
    nz: frozenset[int] = frozenset()
    converts: Callable[[Case], bool] = lambda case: False
    graph: GraphCall | None = None
    served: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule a case must keep, as data: its text for people, and the test."""

    text: str
    holds: Callable[[Case], bool]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One kernel type: how to call it, what it costs, and what it does in plain torch.

    kernel       the profiler's `Type`
    call         the public API that launches it on an NPU host
    slots        what each input slot means, in order
    reference    (torch, *args, **kwargs) -> what cpu and cuda run. It returns a tensor, or a
                 tuple in the row's order with None for an absent output; where the row's outputs
                 are N/A, what it updated. Every launch runs the same operators in the same order
    build        (case, make) -> Call; the default makes one tensor a slot
    optional     the slots that an empty cell leaves out; in the others it is a scalar
    optional_outputs  the same for outputs
    infinite     the outputs in which infinities are right, as scores that were masked out
    written      the first rows of the outputs, where the others stay as their memory was
    variadic     the last slot may repeat
    moves_data   it copies or converts only, and always runs in the real dtype
    flops        floating-point operations of one launch
    traffic      bytes read and written by one launch, each tensor once
    group        what cases share so that they set up together (a weight, a mask)
    packed       the input slots whose numbers torch only stores, by the dtype that is replayed
    packed_outputs  the same for outputs, whose form is torch's own and is not compared
    layouts      the formats in which its rows' tensors lie though every device is given plain ones:
                 the runtime converts them, for its kernel alone
    npu          how an NPU host launches it
    placed       the case with each tensor at its own slot, where its row may leave absent inputs
                 out
    twins        other kernel types that the same call may launch: the runtime chooses. Each is an
                 operator of its own in the registry
    runtime      the `Runtime ...` columns that a launch depends on, with the values that a replay
                 uses: those of the case, or the likeliest where it names none
    assumes      what is taken of values on which the time may depend, as where indices point, and
                 which a row does not hold; empty where it depends on none
    untold       what the time depends on and the case does not say, where no value is likely
                 enough to be taken unasked; empty where all is told
    """

    kernel: str
    call: str
    slots: tuple[str, ...]
    reference: Callable[..., Any]
    flops: Callable[[Case], int]
    build: Callable[[Case, TensorMaker], Call] = field(default_factory=lambda: build_from_slots)
    traffic: Callable[[Case], int] = field(default_factory=lambda: dense_bytes)
    optional: frozenset[int] = frozenset()
    optional_outputs: frozenset[int] = frozenset()
    infinite: frozenset[int] = frozenset()
    written: Callable[[Case], int | None] = lambda case: None
    variadic: bool = False
    moves_data: bool = False
    constraints: tuple[Constraint, ...] = ()
    group: Callable[[Case], str] = field(default_factory=lambda: group_by_dtypes)
    packed: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    packed_outputs: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    layouts: frozenset[str] = frozenset()
    npu: NpuCall = NpuCall()
    placed: Callable[[Case], Case] = lambda case: case
    twins: tuple[str, ...] = ()
    runtime: Callable[[Case], Mapping[str, str]] = field(default_factory=lambda: no_columns)
    assumes: str = ""
    untold: Callable[[Case], str] = lambda case: ""

    @property
    def family(self) -> frozenset[str]:
        """The kernel types among which the runtime chooses."""
        return frozenset((self.kernel, *self.twins))

    def graph_of(self, case: Case) -> GraphCall | None:
        """How a graph launches a case; None where the function by itself does."""
        graph = self.npu.graph
        if graph is not None and graph.takes(case):
            return graph
        of_graph = case.attribute(LAUNCHED_BY) == GRAPH
        return GraphCall(takes=lambda case: True, run=self.npu.run) if of_graph else None

    def npu_call(self, case: Case, make: TensorMaker) -> Call:
        """What an NPU host passes to what it launches."""
        graph = self.graph_of(case)
        build = graph.build if graph is not None else None
        return (build or self.npu.build or self.build)(case, make)

    @property
    def library(self) -> str:
        """What holds the function that `call` names: torch, torch_npu or vllm-ascend."""
        return library_of(self.call)

    def check(self, case: Case, backend: str) -> None:
        """Raises CaseRejected, with the rule, for a case that a backend cannot replay."""
        if complaint := self.complaint(case, backend):
            raise CaseRejected(f"{complaint}: {case.describe()}")

    def complaint(self, case: Case, backend: str) -> str:
        """The rule that a case breaks; empty where a backend can replay it."""
        complaint = (
            self._slots_complaint(case)
            or self._format_complaint(case, backend)
            or library_complaint(case, backend, self.call, self.npu.served)
        )
        broken = (rule.text for rule in self.constraints if not rule.holds(case))
        return complaint or next(broken, "")

    def _slots_complaint(self, case: Case) -> str:
        """What is wrong with the slots themselves; the constraints may then rely on them."""
        if case.inputs is None:
            return "its inputs are unknown (N/A)"
        wanted = f"inputs wanted: {', '.join(self.slots)}{' ...' if self.variadic else ''}"
        if len(case.inputs) > len(self.slots) and not self.variadic:
            return f"{len(case.inputs)} inputs came; {wanted}"
        for position, name in enumerate(self.slots[len(case.inputs) :], len(case.inputs)):
            if position not in self.optional:
                return f"input '{name}' is missing; {wanted}"
        return dtype_complaint("input", case.inputs, self.optional, self.packed) or dtype_complaint(
            "output", case.outputs or (), self.optional_outputs, self.packed_outputs
        )

    def _format_complaint(self, case: Case, backend: str) -> str:
        for position, slot in enumerate(case.inputs or ()):
            is_plain = is_plain_format(slot.format) or slot.format in self.layouts
            if slot.shape is None or is_plain:
                continue
            name = f"format {slot.format} (input {position + 1})"
            if backend != "npu":
                return f"{name} is a layout of NPUs; {backend} has none"
            is_nz = position in self.npu.nz or self.npu.converts(case)
            if slot.format != FRACTAL_NZ or not is_nz:
                return f"{name} is not replayed"
        return ""


def no_columns(case: Case) -> Mapping[str, str]:
    """Nothing but shapes, dtypes and formats decides how long the kernel takes."""
    return {}


def build_from_slots(case: Case, make: TensorMaker) -> Call:
    """One random tensor for every slot; an empty slot is a scalar."""
    return Call(tuple(make.normal(slot.shape or (), slot.dtype) for slot in case.inputs or ()))


def dense_bytes(
    case: Case,
    absent: frozenset[int] = frozenset(),
    absent_outputs: frozenset[int] = frozenset(),
) -> int:
    """Every input read once and every output written once; an unknown output counts nothing.

    An empty cell is a scalar, unless its position is among the absent ones.
    """
    sides = ((case.inputs, absent), (case.outputs, absent_outputs))
    return sum(
        slot.size_bytes
        for slots, optional in sides
        for position, slot in enumerate(slots or ())
        if slot.shape is not None or position not in optional
    )


def group_by_dtypes(case: Case) -> str:
    """Kernel, dtypes and formats: what shares compiled code."""
    slots = case.inputs or ()
    dtypes, formats = ";".join(s.dtype for s in slots), ";".join(s.format for s in slots)
    return f"{case.kernel_type}|{dtypes}|{formats}"
