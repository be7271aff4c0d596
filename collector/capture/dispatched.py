"""A profile of a program on a CPU: what torch dispatches while a step runs, as kernel_details.csv.

An NPU's profiler records the kernels that CANN launched. A CPU and a GPU have none, so each
operator that torch dispatches is written as the kernel that torch_npu launches for it, with its
tensors: so the same program gives a profile that `opmeter plan` reads, on a laptop and on an NPU.
Its durations are those of the CPU, or of the kernels that ran on a GPU. The kernels of an operator
are those of the tables of `collector.engine`; operators that are not in `_CALLS` keep their own
name, and no operator measures them.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
)

from collector.codec.numbers import microseconds
from collector.codec.table import table_bytes
from collector.engine.calls import DTYPES, parse_call
from collector.engine.cells import cells_of
from collector.engine.kernels import kernel_of, launching_calls
from collector.model.vocabulary import BASE_CELLS, INPUT_SHAPES

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
)
assert BASE_CELLS[2] == INPUT_SHAPES
_MARK = "opmeter "  # and the begin of the operator, names its range
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
        self._is_marked = is_marked
        self._timed = 0  # launches with the time of a device

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        began_ns = time.time_ns()
        at_ns = time.perf_counter_ns()
        if self._is_marked:
            with torch.profiler.record_function(f"{_MARK}{began_ns}"):
                out = func(*args, **kwargs)
        else:
            out = func(*args, **kwargs)
        took_ns = time.perf_counter_ns() - at_ns
        name = func._schema.name
        if self.step is not None and not func.is_view and not name.startswith("profiler::"):
            kernel_type, cells = _kernel(f"{name}.{func._overloadname}", args, kwargs, out)
            self.launches.append(
                Launch(self.step, name, kernel_type, cells, began_ns, max(took_ns, 1))
            )
        return out

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
                *(one.cells.get(name, "N/A") for name in COLUMNS[9:]),
            ]
        )
        end_ns = one.start_ns + one.duration_ns
    return table_bytes(COLUMNS, rows, line_end="\r\n")


def write_profile(launches: Sequence[Launch], run: Path) -> Path:
    """Write the profile of a run into its folder; return the path of its table."""
    table = run / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_bytes(kernel_details(launches))
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
    name: str, args: Arguments, kwargs: Mapping[str, Any], out: Any
) -> tuple[str, Mapping[str, str]]:
    """Return the kernel type of an operator and its cells."""
    outs = [one for one in (out if isinstance(out, (tuple, list)) else [out]) if _is_known(one)]
    known = _CALLS.get(name.removesuffix("default"))
    if known is None or not all(_is_known(one) for one in args if isinstance(one, torch.Tensor)):
        return name.replace("::", ".").removesuffix(".default"), _plain_cells(args, outs)
    pattern = known if isinstance(known, str) else known(args, out)
    texts = {f"out{at}" if at else "out": _text(one) for at, one in enumerate(outs)}
    call = parse_call(f"ACLNN aclnn{pattern.format(*map(_text, args), **texts)}")
    return kernel_of(call), cells_of(call)


def _is_known(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _DTYPES


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


def _plain_cells(args: Arguments, outs: Sequence[torch.Tensor]) -> dict[str, str]:
    tensors = [one for one in args if _is_known(one)]
    return {**_side("Input", tensors), **_side("Output", outs)}


def _side(name: str, tensors: Sequence[torch.Tensor]) -> dict[str, str]:
    shapes = ";".join(",".join(map(str, one.shape)) for one in tensors)
    return {
        f"{name} Shapes": f'"{shapes}"',
        f"{name} Data Types": ";".join(DTYPES[_DTYPES[one.dtype]] for one in tensors),
        f"{name} Formats": ";".join("ND" for _ in tensors),
    }
