"""The declaration of an operator: an `OpSpec` in a module of a family of `catalog/`.

A declaration is data and a few small functions. They receive torch as an argument and never import
it, so that a machine without torch can list, plan and check operators.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol

from collector.codec.errors import CaseRejected
from collector.model.case import Case
from collector.model.lookup import Lookup
from collector.model.measurement import Library
from collector.model.stack import EVENTS
from collector.model.vocabulary import (
    FRACTAL_NZ,
    GRAPH,
    LAUNCHED_BY,
    LIBRARY,
    OPERATOR_FILE,
    is_plain_format,
)
from collector.ops.expression import parse_expression
from collector.ops.launching import As, LaunchedBy
from collector.ops.signature import parse_signature
from collector.ops.slots import dtype_error

PASS_BACKENDS = ("cpu", EVENTS)  # those that time a launch of several kernels as a whole


def library_of(call: str) -> str:
    """Return the library of a function: torch, torch_npu or vllm-ascend."""
    if call.startswith(("torch.ops._C_ascend.", "torch.ops.vllm.", "vllm_ascend.", "vllm.")):
        return "vllm-ascend"
    is_npu = call.startswith(("torch_npu.", "torch.ops.npu.", "torch.ops.atb."))
    return "torch_npu" if is_npu else "torch"


class TensorMaker(Protocol):
    """Maker of the tensors of one case on the device, seeded by the case.

    `dtype` is always a profiler's spelling. A device may compute a 16-bit type in float32 (unless
    the operator only moves data). The tensors are float32 then, and `dtype()` returns float32."""

    torch: Any

    def dtype(self, spelling: str) -> Any:
        """Return the torch dtype that a spelling has on this device."""

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        """Return random numbers: N(0, 1) for floats, small integers, random BOOL values."""

    def uniform(self, shape: Sequence[int], dtype: str, low: float, high: float) -> Any: ...

    def integers(self, shape: Sequence[int], dtype: str, low: int, high: int) -> Any:
        """Return random integers of [low, high)."""

    def permutation(self, n: int, dtype: str) -> Any: ...

    def full(self, shape: Sequence[int], dtype: str, value: float) -> Any: ...

    def empty(self, shape: Sequence[int], dtype: str) -> Any: ...

    def tensor(self, values: Sequence[Any], dtype: str) -> Any:
        """Return a tensor of these host values: tables of indices and lengths."""

    def stored(self, tensor: Any, format: str) -> Any:
        """Return the tensor in a slot's format: FRACTAL_NZ or NC1HWC0 on an NPU, else unchanged."""


@dataclass(frozen=True, slots=True, init=False)
class Call:
    """The arguments of every launch of a case: built once, used for each repeat."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, /, *args: Any, **kwargs: Any):
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)


class Need(StrEnum):
    """What an NPU host must have for an operator, in addition to CANN and torch_npu."""

    ATB = "ATB (Ascend Transformer Boost, in CANN's nnal package)"
    CUSTOM_OPP = "custom OPP of vLLM-Ascend (ASCEND_CUSTOM_OPP_PATH)"
    VLLM_ASCEND = "vllm_ascend, whose library registers torch.ops._C_ascend"
    TRITON = "Triton kernels of vLLM-Ascend (triton-ascend)"
    ENGINE_CONFIG = "default configuration of an engine of vLLM, which vllm_ascend reads"
    BLOCK_VERIFICATION = "vllm_ascend with enable_block_verify (0.23)"
    TORCHAIR = "torchair (protobuf next to torch_npu)"
    ASCEND_950 = "Ascend 950PR or 950DT"


def call_plainly(api: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function with the arguments as they were built."""
    return api(*args, **kwargs)


def accepts(api: Any, name: str) -> bool:
    """Return whether an operator of torch takes an argument of this name, according to its schemas.

    Without a schema the result is True: the operator raises where it does not take the argument."""
    overloads = getattr(api, "overloads", None)
    if overloads is None:
        return True
    schemas = (getattr(api, overload)._schema for overload in overloads())
    return any(argument.name == name for schema in schemas for argument in schema.arguments)


@dataclass(frozen=True, slots=True)
class GraphCall:
    """The launch of a kernel that only a graph of CANN (GE) has.

    torchair compiles the one operator; its converters name the op of each call.

    takes  whether a case is of a graph: by its kernel type, or by the slots that graphs leave out
    run    (api, *args, **kwargs) -> outputs: the function that is compiled
    build  (case, make) -> Call, if it takes other arguments than a launch without a graph
    is_static  whether the kernel is launched by graphs of constant sizes alone"""

    takes: Callable[[Case], bool]
    run: Callable[..., Any] = call_plainly
    build: "Callable[[Case, TensorMaker], Call] | None" = None
    is_static: bool = False


@dataclass(frozen=True, slots=True)
class NpuCall:
    """The launch of an operator on an NPU host, if it differs from a plain call of `OpSpec.call`.

    run    (api, *args, **kwargs) -> outputs in the row's order, None for an absent one; `api` is
           that function. The default passes all arguments on
    build  (case, make) -> Call, if the function takes other arguments than the reference
    needs  what the host must have
    nz     the input slots that may be FRACTAL_NZ
    converts  the cases whose FRACTAL_NZ tensors the runtime converts from plain ones
    graph  the launch in a graph, if the function by itself does not launch the kernel
    recorded  the positions of arguments in a host's record of the call, by the suffix of the
           function's version, those of the last release first; only of arguments that a row lacks
    served the function by which vLLM-Ascend launches a kernel of the same name from its own
           library, if its releases have one: `run` calls it too"""

    run: Callable[..., Any] = call_plainly
    build: "Callable[[Case, TensorMaker], Call] | None" = None
    needs: frozenset[Need] = frozenset()
    nz: frozenset[int] = frozenset()
    converts: Callable[[Case], bool] = lambda case: False
    graph: GraphCall | None = None
    recorded: Mapping[str, Mapping[str, tuple[int, ...]]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    served: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule that a case must satisfy: its text for users, and the check."""

    text: str
    holds: Callable[[Case], bool]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One kernel type: its call, its costs, and its reference in plain torch.

    kernel       the profiler's `Type`
    call         the public API that launches it on an NPU host
    signature    its arguments and outputs with their dtypes and dimensions (`signature.py`)
    reference    (torch, *args, **kwargs) -> what cpu and cuda run; the default is torch's function
                 `call`, run as on an NPU. It returns a tensor, or a tuple in the row's order with
                 None for an absent output; if the row's outputs are N/A, the tensors that it
                 updated. Every launch runs the same operators in the same order
    build        (case, make) -> Call; the default makes one tensor per slot
    infinite     the outputs that may hold infinities, such as masked scores
    written      the number of first rows of the outputs that a launch writes, None for all; other
                 rows keep the content of their memory
    moves_data   it copies or converts only, and always runs in the real dtype
    operations   arithmetic operations of one launch, as an expression of the names of the signature
    flops        the same as a function, where an expression does not do; none by default
    traffic      bytes read and written by one launch; the default is that of each tensor once
    group        key of the cases that share their setup (a weight, a mask)
    packed       the input slots that torch can only store, with the dtype that is replayed
    packed_outputs  the same for outputs, whose form is torch's own and is not compared
    narrow       the dtypes of Ascend 950 that it has there; its constraints tell in which slots
    layouts      the formats of its rows' tensors that the runtime makes from plain ones for this
                 kernel only: every device gets plain tensors
    npu          the launch on an NPU host
    placed       the case with each tensor at the slot of its argument, if rows may leave absent
                 arguments out, or have placeholders for them
    ambiguous    why the tensors of a row may be of several arguments; empty if they are not
    twins        other kernel types that the same call may launch: the runtime chooses. Each is an
                 operator of its own in the registry
    is_shown_otherwise  a row of the kernel shows other tensors than its call has: packed or
                 transposed weights, tensors that are updated in place, absent outputs, or FLOAT8 as
                 bytes (`tests/npu/logged_rows.py` compares every kernel)
    runtime      the `Runtime ...` columns that a launch depends on, with the values that a replay
                 uses: those of the case, or the likeliest if it names none
    assumes      the assumption about values that may affect the time and that a row does not
                 contain, such as the targets of indices; empty if there is none
    missing_metadata  what affects the time and is missing in the case, if no value is likely
                 enough to be assumed; empty if nothing is missing
    lookups      the operators of a model whose duration a consumer takes from this kernel
    launched_by  the calls that a host records of it, with the positions of its arguments where
                 these are not in order; not those that name the kernel and have all in order
    shown        what a profile shows of an argument or an output of a call: a form, a dtype that
                 the runtime converts it to, or the argument whose dtype it has
    launch       the function that every device runs, of an operator in a user's file (`own.py`);
                 its `reference` is only compared with
    file         the hash of that file, which its cases have as a column
    is_of_torch  it is an operator of torch itself (`torch_operators.py`): on an NPU it launches
                 kernels, which have declarations of their own
    is_pass      its launch is a whole pass of a model, which is timed without a profiler

    From the signature follow:

    slots        the names of the input slots, in order
    optional     the slots that an empty cell leaves out; in others an empty cell is a scalar
    optional_outputs  the same for outputs
    variadic     the last slot may repeat
    pools        the arguments whose first dimension is the pages of a pool, each with the argument
                 of the table of pages that is given then, or "" if none is needed. The number of
                 pages does not change the kernel, nor does the width of the table, if the lengths
                 of the requests are known"""

    kernel: str
    call: str
    signature: str
    reference: Callable[..., Any] | None = None
    operations: str = ""
    flops: Callable[[Case], int] = lambda case: 0
    build: Callable[[Case, TensorMaker], Call] = field(default_factory=lambda: build_from_slots)
    traffic: Callable[[Case], int] = field(default_factory=lambda: dense_bytes)
    infinite: frozenset[int] = frozenset()
    written: Callable[[Case], int | None] = lambda case: None
    moves_data: bool = False
    constraints: tuple[Constraint, ...] = ()
    group: Callable[[Case], str] = field(default_factory=lambda: group_by_dtypes)
    packed: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    packed_outputs: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    narrow: frozenset[str] = frozenset()
    layouts: frozenset[str] = frozenset()
    npu: NpuCall = NpuCall()
    placed: Callable[[Case], Case] = field(default_factory=lambda: as_printed)
    ambiguous: Callable[[Case], str] = lambda case: ""
    twins: tuple[str, ...] = ()
    is_shown_otherwise: bool = False
    runtime: Callable[[Case], Mapping[str, str]] = field(default_factory=lambda: no_columns)
    assumes: str = ""
    missing_metadata: Callable[[Case], str] = lambda case: ""
    lookups: tuple[Lookup, ...] = ()
    launched_by: LaunchedBy = field(default_factory=lambda: MappingProxyType({}))
    shown: Mapping[str, As | str] = field(default_factory=lambda: MappingProxyType({}))
    launch: Callable[..., Any] | None = None
    file: str = ""
    is_of_torch: bool = False
    is_pass: bool = False
    slots: tuple[str, ...] = field(init=False)
    optional: frozenset[int] = field(init=False)
    optional_outputs: frozenset[int] = field(init=False)
    variadic: bool = field(init=False)
    pools: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        read = parse_signature(self.signature)
        for name in ("slots", "optional", "optional_outputs", "variadic", "pools"):
            object.__setattr__(self, name, getattr(read, name))
        if self.operations:
            operations = parse_expression(self.operations)
            object.__setattr__(self, "flops", lambda case: operations.compute(read.sizes(case)))
        if self.build is build_from_slots:
            object.__setattr__(self, "build", partial(build_from_slots, optional=self.optional))
        if self.traffic is dense_bytes:
            traffic = partial(dense_bytes, optional=self.optional, outputs=self.optional_outputs)
            object.__setattr__(self, "traffic", traffic)

    @property
    def family(self) -> frozenset[str]:
        """Return the kernel types among which the runtime chooses."""
        return frozenset((self.kernel, *self.twins))

    def positions(self, *slots: str) -> tuple[int, ...]:
        """Return the positions of input slots by their names."""
        return tuple(map(self.slots.index, slots))

    def run_reference(self, torch: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch the operator in plain torch."""
        if self.reference is not None:
            return self.reference(torch, *args, **kwargs)
        api = attrgetter(self.call.removeprefix("torch."))(torch)
        return self.npu.run(api, *args, **kwargs)

    def graph_of(self, case: Case) -> GraphCall | None:
        """Return the launch of a case in a graph; None if the function launches it without one."""
        graph = self.npu.graph
        if graph is not None and graph.takes(case):
            return graph
        of_graph = case.attribute(LAUNCHED_BY) == GRAPH
        return GraphCall(takes=lambda case: True, run=self.npu.run) if of_graph else None

    def npu_call(self, case: Case, make: TensorMaker) -> Call:
        """Return the arguments of the launch on an NPU host."""
        graph = self.graph_of(case)
        build = graph.build if graph is not None else None
        return (build or self.npu.build or self.build)(case, make)

    @property
    def library(self) -> str:
        """Return the library of the function that `call` names: torch, torch_npu or vllm-ascend;
        none for an operator of a user's file."""
        return "" if self.file else library_of(self.call)

    def check(self, case: Case, backend: str) -> None:
        """Raise CaseRejected, with the rule, for a case that a backend cannot replay."""
        if rejection_reason := self.rejection_reason(case, backend):
            raise CaseRejected(f"{rejection_reason}: {case.describe()}")

    def rejection_reason(self, case: Case, backend: str) -> str:
        """Return the rule that a case breaks; empty if a backend can replay it."""
        rejection_reason = (
            self._file_complaint(case)
            or self._backend_complaint(backend)
            or self._slots_complaint(case)
            or self._format_complaint(case, backend)
            or self._library_complaint(case, backend)
            or self.ambiguous(case)
            or self._signature_complaint(case)
        )
        broken = (rule.text for rule in self.constraints if not rule.holds(case))
        return rejection_reason or next(broken, "")

    def _file_complaint(self, case: Case) -> str:
        """Return why the case is not of the user's file that declares the kernel."""
        got = case.attribute(OPERATOR_FILE) or ""
        if got == self.file:
            return ""
        declared = f"the file of operators {self.file}" if self.file else "opmeter"
        of = f"of the file of operators {got}" if got else "without a file of operators"
        return f"{self.kernel} is declared by {declared}, and the case is {of}"

    def _backend_complaint(self, backend: str) -> str:
        """Return why the backend has other names for what it runs."""
        if backend == "npu" and self.is_of_torch:
            return "an operator of torch: npu measures the kernels that it launches"
        if self.is_pass and backend not in PASS_BACKENDS:
            return f"a pass is timed on {' or '.join(PASS_BACKENDS)}, not on {backend}"
        return ""

    def _slots_complaint(self, case: Case) -> str:
        """Return what is wrong with the slots themselves; the constraints may rely on the rest."""
        if case.inputs is None:
            return "its inputs are unknown (N/A)"
        expected = f"expected inputs: {', '.join(self.slots)}{' ...' if self.variadic else ''}"
        if len(case.inputs) > len(self.slots) and not self.variadic:
            return f"{len(case.inputs)} inputs: too many; {expected}"
        for position, name in enumerate(self.slots[len(case.inputs) :], len(case.inputs)):
            if position not in self.optional:
                return f"input '{name}' is missing; {expected}"
        inputs, outputs, narrow = case.inputs, case.outputs or (), self.narrow
        return dtype_error("input", inputs, self.optional, self.packed, narrow) or dtype_error(
            "output", outputs, self.optional_outputs, self.packed_outputs, narrow
        )

    def _signature_complaint(self, case: Case) -> str:
        """Return which tensor has not the dtype or the dimensions of its argument."""
        return parse_signature(self.signature).complaint(case)

    def _library_complaint(self, case: Case, backend: str) -> str:
        """Return why the requested library has no such kernel: CANN, vLLM-Ascend or both do."""
        requested = case.attribute(LIBRARY)
        if requested is None:
            return ""
        if backend != "npu":
            return f"kernels of {requested} are requested; {backend} has no such library"
        is_own = self.library == Library.VLLM_ASCEND
        known = ([] if is_own else [Library.CANN]) + (
            [Library.VLLM_ASCEND] if is_own or self.npu.served else []
        )
        return (
            ""
            if requested in known
            else f"expected a kernel of {' or '.join(known)}, got {requested}"
        )

    def _format_complaint(self, case: Case, backend: str) -> str:
        for position, slot in enumerate(case.inputs or ()):
            is_plain = is_plain_format(slot.format) or slot.format in self.layouts
            if slot.shape is None or is_plain:
                continue
            name = f"format {slot.format} (input {position + 1})"
            if backend != "npu":
                return f"{name} is a layout of NPUs; {backend} does not have it"
            is_nz = position in self.npu.nz or self.npu.converts(case)
            if slot.format != FRACTAL_NZ or not is_nz:
                return f"{name} is not replayed"
        return ""


def as_printed(case: Case) -> Case:
    """Return the case unchanged: its row has every tensor at the slot of its argument."""
    return case


def no_columns(case: Case) -> Mapping[str, str]:
    """Return no columns: only shapes, dtypes and formats determine the duration."""
    return {}


def build_from_slots(case: Case, make: TensorMaker, optional: frozenset[int] = frozenset()) -> Call:
    """Return one random tensor per slot. An empty slot is a scalar, or None if it is optional."""
    return Call(
        *(
            None
            if slot.shape is None and position in optional
            else make.normal(slot.shape or (), slot.dtype)
            for position, slot in enumerate(case.inputs or ())
        )
    )


def dense_bytes(
    case: Case, optional: frozenset[int] = frozenset(), outputs: frozenset[int] = frozenset()
) -> int:
    """Return the bytes of every input read once and every output written once.

    An empty cell is a scalar, unless its position is in `optional`, or for an output in `outputs`.
    Unknown outputs count 0 bytes."""
    sides = ((case.inputs, optional), (case.outputs, outputs))
    return sum(
        slot.size_bytes
        for slots, absent in sides
        for position, slot in enumerate(slots or ())
        if slot.shape is not None or position not in absent
    )


def group_by_dtypes(case: Case) -> str:
    """Return a key of kernel type, dtypes and formats: cases with one key share compiled code."""
    slots = case.inputs or ()
    dtypes, formats = ";".join(s.dtype for s in slots), ";".join(s.format for s in slots)
    return f"{case.kernel_type}|{dtypes}|{formats}"
