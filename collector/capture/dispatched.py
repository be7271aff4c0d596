"""A profile of a program on a CPU: what torch dispatches while a step runs, as kernel_details.csv.

An NPU's profiler records the kernels that CANN launched. A CPU and a GPU have none, so each
operator that torch dispatches is written as the kernel that torch_npu launches for it, with its
tensors: so the same program gives a profile that `opmeter plan` reads, on a laptop and on an NPU.
Its durations are those of the CPU, or of the kernels that ran on a GPU. The kernels of an operator
are those of the tables of `collector.engine`. Operators that are not in `_CALLS`, or whose kernel
is not measured with these tensors, keep their own name and have their arguments
(`collector.ops.torch_operators`).
"""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
)

from collector.capture.messages import (
    Message,
    Span,
    exposed_ns,
    message_of,
    profiled_spans,
    write_messages,
)
from collector.codec.numbers import microseconds
from collector.codec.table import table_bytes
from collector.engine.calls import parse_call
from collector.engine.cells import cells_of
from collector.engine.kernels import kernel_of, launching_calls
from collector.model.case import Slot, case_from_cells, tensor_cells
from collector.model.vocabulary import (
    BASE_CELLS,
    CALL_VALUES,
    INPUT_SHAPES,
    NOT_KNOWN,
    TORCH_ARGUMENTS,
    TORCH_VALUES,
    torch_dtype_of,
)
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.ops.torch_operators import (
    BELOW,
    LEAST,
    REFUSED,
    SORTED,
    STRIDES,
    TRUE,
    recorded_number,
)
from collector.profiles.step_trace import FILE as STEP_TRACE
from collector.profiles.step_trace import STEP_COLUMNS

# The words of a recorded call for dtypes, by torch's names.
DTYPE_WORDS = {
    "bfloat16": "bf16",
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    "uint8": "u8",
    "bool": "bool",
}
_DTYPES = {getattr(torch, name): word for name, word in DTYPE_WORDS.items()}
_DTYPES |= {torch.complex64: "c64", torch.complex128: "c128"}
COLUMNS = (
    *("Step Id", "Device_id", "Name", "Type", "OP State", "Accelerator Core"),
    *("Start Time(us)", "Duration(us)", "Wait Time(us)"),
    *BASE_CELLS[2:],
    CALL_VALUES,
)
assert BASE_CELLS[2] == INPUT_SHAPES
_MARK = "opmeter "  # and the begin of the operator, names its range
_PLAIN = torch.Tensor.__torch_dispatch__
_CORE = "AI_VECTOR_CORE"  # a CPU has no cores of kernels; no case depends on it


@dataclass(frozen=True, slots=True)
class Launch:
    """One dispatched operator, as the row of a kernel."""

    step: int
    name: str
    kernel_type: str
    cells: Mapping[str, str]
    start_ns: int
    duration_ns: int
    message: Message | None = None

    @property
    def span(self) -> Span:
        return self.start_ns, self.start_ns + self.duration_ns


def load_kernels() -> None:
    """Load the declarations of operators, so that the first recorded step does not."""
    launching_calls()


def modes_of_torch() -> int:
    """Return how many modes of the dispatcher the thread is in."""
    return len(_get_current_dispatch_mode_stack())


class DispatchObserver(TorchDispatchMode):  # type: ignore[misc]
    """A mode that sees operators and changes none."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work as without the mode, which sees what compiled code calls."""
        return True


class DispatchedCalls(DispatchObserver):
    """Notes the operators that run while `step` is a number; views run nothing and are omitted.

    With `is_marked`, each is a range of torch's profiler, which knows its kernels."""

    def __init__(self, *, is_marked: bool = False) -> None:
        super().__init__()
        self.step: int | None = None
        self.launches: list[Launch] = []
        self._rows: dict[Hashable, tuple[str, Mapping[str, str]]] = {}  # of calls so far
        self._is_marked = is_marked
        self._timed = 0  # launches with the time of a device
        self._sent = 0  # launches whose messages have the time of the backend

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(one.__torch_dispatch__ is not _PLAIN for one in types):
            return NotImplemented  # its class calls operators on its parts, which come here
        kwargs = kwargs or {}
        values = _values_of(func, args, kwargs) if self._is_noted(func) else None
        began_ns = time.time_ns()
        at_ns = time.perf_counter_ns()
        if self._is_marked:
            with torch.profiler.record_function(f"{_MARK}{began_ns}"):
                out = func(*args, **kwargs)
        else:
            out = func(*args, **kwargs)
        took_ns = time.perf_counter_ns() - at_ns
        if self.step is not None and (message := message_of(func, args)) is not None:
            name = message.row_name(len(self.launches))
            took = (began_ns, max(took_ns, 1))
            self.launches.append(Launch(self.step, name, message.kernel_type, {}, *took, message))
        elif self.step is not None and values is not None:
            key = (func, *map(_key, (args, kwargs, out)), values)
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = _kernel(func, args, kwargs, out, values)
            name = func._schema.name
            self.launches.append(Launch(self.step, name, *row, began_ns, max(took_ns, 1)))
        return out

    def _is_noted(self, func: Any) -> bool:
        is_view = func.is_view or torch.Tag.inplace_view in func.tags
        is_work = not is_view and not func._schema.name.startswith("profiler::")
        return self.step is not None and is_work

    def take_message_times(self, events: Iterable[Any]) -> None:
        """Replace the times of the messages since the last call by those of torch's events, since
        a program goes on after it has dispatched one."""
        places = [at for at in range(self._sent, len(self.launches)) if self.launches[at].message]
        kernel_types = [self.launches[at].kernel_type for at in places]
        for at, span in zip(places, profiled_spans(kernel_types, events), strict=True):
            if span is not None:
                start_ns, end_ns = span
                took_ns = max(1, end_ns - start_ns)
                one = replace(self.launches[at], start_ns=start_ns, duration_ns=took_ns)
                self.launches[at] = one
        self._sent = len(self.launches)

    def take_device_times(self, events: Iterable[Any]) -> None:
        """Replace the times of the launches since the last call, which are those of the host, by
        those of the marked ranges in torch's events. Operators that ran nothing on the device are
        dropped."""
        # torch also lists the range as seen on the device, from its first kernel to its last.
        host = torch.autograd.DeviceType.CPU
        times_us = {
            one.name: one.device_time_total
            for one in events
            if one.name.startswith(_MARK) and one.device_type == host
        }
        timed = [
            replace(one, duration_ns=round(took_us * 1000))
            for one in self.launches[self._timed :]
            if (took_us := times_us.get(f"{_MARK}{one.start_ns}", 0.0)) > 0
        ]
        self.launches[self._timed :] = timed
        self._timed = len(self.launches)


def kernel_details(launches: Sequence[Launch]) -> bytes:
    """Return the bytes of a kernel_details.csv of these launches, as torch_npu writes it."""
    rows: list[list[str]] = []
    end_ns = launches[0].start_ns if launches else 0
    for one in launches:
        waited_ns = max(0, one.start_ns - end_ns)
        rows.append(
            [
                *(str(one.step), "0", one.name, one.kernel_type, "dynamic", _CORE),
                *(
                    f"{microseconds(one.start_ns)}\t",
                    microseconds(one.duration_ns),
                    microseconds(waited_ns),
                ),
                *(one.cells.get(name, NOT_KNOWN) for name in COLUMNS[9:-1]),
                one.cells.get(CALL_VALUES, ""),
            ]
        )
        end_ns = one.start_ns + one.duration_ns
    return table_bytes(COLUMNS, rows, line_end="\r\n")


@dataclass(frozen=True, slots=True)
class Step:
    """When a step ran, by the clock of its launches."""

    number: int
    start_ns: int
    end_ns: int


def step_trace(launches: Iterable[Launch], steps: Iterable[Step]) -> bytes:
    """Return the bytes of a step_trace_time.csv: the time of each step, of its operators, and of
    its messages while no operator ran."""
    by_step: dict[int, list[Launch]] = {}
    for one in launches:
        by_step.setdefault(one.step, []).append(one)
    rows = []
    for step in steps:
        whole_ns, found = step.end_ns - step.start_ns, by_step.get(step.number, [])
        operators = [one for one in found if one.message is None]
        messages = [one.span for one in found if one.message is not None]
        computing_ns = min(whole_ns, sum(one.duration_ns for one in operators))
        span = (step.start_ns, step.end_ns)
        exposed = exposed_ns(messages, (one.span for one in operators), span)
        alone_ns = min(exposed, whole_ns - computing_ns)
        sent_ns = exposed_ns(messages, (), span)
        times = (computing_ns, alone_ns, sent_ns - alone_ns, sent_ns)
        rest = (whole_ns - computing_ns - alone_ns, whole_ns)
        rows.append(["0", str(step.number), *map(microseconds, (*times, *rest))])
    return table_bytes(STEP_COLUMNS, rows, line_end="\r\n")


def write_profile(launches: Sequence[Launch], run: Path, steps: Iterable[Step] = ()) -> Path:
    """Write the profile of a run into its folder; return the path of its table."""
    table = run / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_bytes(kernel_details(launches))
    table.with_name(STEP_TRACE).write_bytes(step_trace(launches, steps))
    sent = ((one.step, one.name, one.message, one.span) for one in launches if one.message)
    write_messages(sent, table.parent)
    return table


# The call of CANN's library that torch_npu makes for an operator, as text: `{0}` is an argument,
# `{out}` an output. A function returns it where the call depends on the arguments.

Arguments = Sequence[Any]
_Chosen = Callable[[Arguments, Any], str]
_COPY = "InplaceCopy({out}, {0})"


def _operand(of_tensor: str, of_number: str) -> _Chosen:
    return lambda args, out: of_tensor if isinstance(args[1], torch.Tensor) else of_number


def _converted(args: Arguments, out: Any) -> str:
    return _COPY if args[0].dtype == out.dtype else "Cast({0}, 0, {out})"


def _over_dims(name: str) -> _Chosen:
    def call(args: Arguments, out: Any) -> str:
        dims = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
        return f"{name}({{0}}, ints({','.join(map(str, dims))}), 0, 9, {{out}})"

    return call


_UNARY = {
    **dict.fromkeys(("silu", "silu_"), "Silu"),
    **dict.fromkeys(("relu", "relu_"), "Relu"),
    **{name: name.capitalize() for name in ("abs", "cos", "exp", "gelu", "log", "neg", "rsqrt")},
    **{name: name.capitalize() for name in ("reciprocal", "sigmoid", "sin", "sqrt", "tanh")},
}
_CALLS: Mapping[str, str | _Chosen] = {
    **{f"aten::{name}.": f"{call}({{0}}, {{out}})" for name, call in _UNARY.items()},
    "aten::mm.": "Mm({0}, {1}, {out}, 0)",
    "aten::bmm.": "BatchMatMul({0}, {1}, {out}, 0)",
    "aten::addmm.": "Addmm({0}, {1}, {2}, f32=1, f32=1, {out}, 0)",
    "aten::add.Tensor": _operand("Add({0}, {1}, i64=1, {out})", "InplaceAdds({0}, f32=1, i64=1)"),
    "aten::add_.Tensor": _operand("Add({0}, {1}, i64=1, {out})", "InplaceAdds({0}, f32=1, i64=1)"),
    "aten::sub.Tensor": _operand("Sub({0}, {1}, i64=1, {out})", "Subs({0}, f32=1, i64=1, {out})"),
    "aten::mul.Tensor": _operand("Mul({0}, {1}, {out})", "Muls({0}, f32=2, {out})"),
    "aten::div.Tensor": _operand("Div({0}, {1}, {out})", "Muls({0}, f32=2, {out})"),
    "aten::pow.Tensor_Scalar": "PowTensorScalar({0}, f32=2, {out})",
    "aten::_softmax.": "Softmax({0}, -1, {out})",
    "aten::_log_softmax.": "LogSoftmax({0}, -1, {out})",
    "aten::_to_copy.": _converted,
    "aten::clone.": _COPY,
    "aten::copy_.": "InplaceCopy({0}, {1})",
    "aten::cat.": "Cat({0}, 0, {out})",
    "aten::embedding.": "Embedding({0}, {1}, {out})",
    "aten::index_select.": "IndexSelect({0}, 0, {2}, {out})",
    "aten::mean.dim": _over_dims("Mean"),
    "aten::mean.": _over_dims("Mean"),
    "aten::sum.dim_IntList": _over_dims("ReduceSum"),
    "aten::sum.": _over_dims("ReduceSum"),
    "aten::native_layer_norm.": "LayerNorm({0}, ints(), {2}, {3}, {out}, {out1}, {out2})",
    "aten::argmax.": "ArgMax({0}, -1, 0, {out})",
    "aten::zeros_like.": "InplaceZero({out})",
    "aten::zero_.": "InplaceZero({0})",
    "aten::ones_like.": "InplaceOne({out})",
}


def _kernel(
    func: Any, args: Arguments, kwargs: dict[str, Any], out: Any, values: "_Values"
) -> tuple[str, Mapping[str, str]]:
    """Return the kernel type of an operator and its cells."""
    name = f"{func._schema.name}.{func._overloadname}"
    outs = list(_tensors_in(out))
    known = _CALLS.get(name.removesuffix("default"))
    tensors = (one for one in args if isinstance(one, torch.Tensor))
    if known is not None and all(map(_is_known, (*tensors, *outs))):
        pattern = known if isinstance(known, str) else known(args, out)
        texts = {f"out{at}" if at else "out": _text(one) for at, one in enumerate(outs)}
        call = parse_call(f"ACLNN aclnn{pattern.format(*map(_text, args), **texts)}")
        kernel_type, cells = kernel_of(call), cells_of(call)
        if _is_measured(kernel_type, tuple(cells.items())):
            return kernel_type, cells
    recorded = _Arguments(func._schema, args, kwargs, values)
    return name.replace("::", ".").removesuffix(".default"), {
        **tensor_cells(recorded.slots, map(_slot, outs)),
        CALL_VALUES: json.dumps(recorded.columns),
    }


def _key(value: Any) -> Hashable:
    """Return what a row depends on, of an argument or an output: not the values of tensors."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value.layout, value.dtype, value.shape
        held = value.untyped_storage().nbytes() if not value.is_contiguous() else 0
        place = (value.stride(), value.storage_offset()) if held else ()
        return value.dtype, value.shape, place, held
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if isinstance(value, Mapping):
        return tuple((name, _key(one)) for name, one in value.items())
    if isinstance(value, float):
        value = recorded_number(value)
    return type(value), value if isinstance(value, Hashable) else None


@lru_cache(maxsize=4096)
def _is_measured(kernel_type: str, cells: tuple[tuple[str, str], ...]) -> bool:
    """Return whether a CPU measures a kernel with these tensors."""
    return refusal(case_from_cells(kernel_type, dict(cells)), find_operator, "cpu") is None


def _is_known(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.dtype in _DTYPES and value.layout is torch.strided
    )


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an output or an argument, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors_in(one)


def _slot(tensor: torch.Tensor) -> Slot:
    name = str(tensor.dtype).removeprefix("torch.")
    known = torch_dtype_of(name)
    shape = tuple(tensor.shape) or None
    return Slot(shape, known.spelling if known else name.upper(), "ND")


# Arguments of an operator that is no kernel, as `collector.ops.torch_operators` reads them.

_COUNTED = (torch.int32, torch.int64, torch.bool)
_NOT_RECORDED = frozenset({"device", "pin_memory", "generator", "non_blocking"})
_INDEX_LIST = "List[Optional[Tensor]]"  # the type of the argument of `x[mask, indices]`
_Values = tuple[tuple[tuple[str, int], ...], ...]  # what is recorded of each tensor


def _values_of(func: Any, args: Arguments, kwargs: dict[str, Any]) -> _Values:
    """Return what is recorded of the values of each tensor of a call, before it may change them:
    the range of integers, and how many values are true where this decides a size."""
    if not any(one.dtype in _COUNTED for one in _tensors_in((args, tuple(kwargs.values())))):
        return ()
    is_counted = torch.Tag.dynamic_output_shape in func.tags or any(
        str(one.type) == _INDEX_LIST for one in func._schema.arguments
    )
    given = _given(func._schema, args, kwargs)
    return tuple(tuple(_known(one, is_counted)) for one in _tensors_in(tuple(given.values())))


def _known(tensor: torch.Tensor, is_counted: bool) -> Iterator[tuple[str, int]]:
    is_read = tensor.layout is torch.strided and not tensor.is_meta and tensor.numel()
    if not is_read or tensor.dtype not in _COUNTED:
        return
    if tensor.dtype is torch.bool and not is_counted:
        return
    numbers = tensor.cpu().numpy().ravel()  # torch's profiler would record an operator of torch
    if tensor.dtype is torch.bool:
        yield TRUE, int(numbers.sum())
        return
    least, most = int(numbers.min()), int(numbers.max())
    if least < 0 <= most:
        least = 0  # a mark of what does not count, such as -100; others below may be no index
    yield LEAST, least
    yield BELOW, most + 1
    if len(numbers) > 1 and bool((numbers[1:] >= numbers[:-1]).all()):
        yield SORTED, True


def _given(schema: Any, args: Arguments, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded arguments of a call by name, in the order of its schema."""
    named = {one.name: value for one, value in zip(schema.arguments, args, strict=False)} | kwargs
    return {
        one.name: named[one.name]
        for one in schema.arguments
        if one.name in named
        and one.name not in _NOT_RECORDED
        and not _is_default(one, named[one.name])
    }


class _Arguments:
    """The `columns` of a call with its arguments, and the `slots` of their tensors."""

    def __init__(
        self, schema: Any, args: Arguments, kwargs: dict[str, Any], values: _Values
    ) -> None:
        self.slots: list[Slot] = []
        self._values = iter(values)
        self._known: dict[str, Mapping[str, int]] = {}
        given = _given(schema, args, kwargs)
        found = {name: self._value(value) for name, value in given.items()}
        self.columns = {TORCH_ARGUMENTS: json.dumps(found, separators=(",", ":"))}
        if self._known:
            self.columns[TORCH_VALUES] = json.dumps(self._known, separators=(",", ":"))

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (tuple, list)):
            return [self._value(one) for one in value]
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return recorded_number(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        return {REFUSED: f"an argument is not recorded: {type(value).__name__}"}

    def _tensor(self, tensor: torch.Tensor) -> Mapping[str, Any]:
        known = dict(next(self._values, ()))
        if tensor.layout is not torch.strided:
            return {REFUSED: f"the pattern of a sparse tensor is not recorded: {tensor.layout}"}
        if known:
            self._known[str(len(self.slots))] = known
        self.slots.append(_slot(tensor))
        return {} if tensor.is_contiguous() else {STRIDES: list(tensor.stride())}


def _is_default(argument: Any, value: Any) -> bool:
    if isinstance(value, torch.Tensor) or not argument.has_default_value():
        return False
    default = argument.default_value
    return type(value) is type(default) and bool(value == default)


def _text(value: Any) -> str:
    """Return an argument as the recording runtime writes it."""
    if isinstance(value, (tuple, list)) and any(isinstance(one, torch.Tensor) for one in value):
        return f"{{{', '.join(map(_text, value))}}}"
    if not isinstance(value, torch.Tensor):
        return "0"
    shape = ",".join(map(str, value.shape))
    text = f"{_DTYPES[value.dtype]}[{shape}]:ND"
    if value.is_contiguous():
        return text
    strides = ",".join(map(str, value.stride()))
    offset = f"+{value.storage_offset()}" if value.storage_offset() else ""
    elements = value.untyped_storage().nbytes() // value.element_size()
    return f"{text}/{strides}{offset}<{elements}>"
