"""What profilers drop of custom operators: their arguments, as the dispatcher gets them.

A row of a kernel has no lengths of requests, and rows of Triton kernels and of some custom
operators have no shapes. While steps are kept, each call of such an operator becomes a JSON line
with its step and order, from which `collector.profiles.logged_calls` completes the rows.

A line of fused attention has the keys that `opmeter tree fia-backfill` reads, too.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import torch

from collector.capture.dispatched import DTYPE_WORDS, DispatchObserver
from collector.engine.calls import parse_call
from collector.engine.cells import cells_in_order, cells_of
from collector.ops.launching import As
from collector.ops.registry import all_ops, fused_attention, is_product
from collector.ops.spec import OpSpec

_NAMESPACES = frozenset({"_C_ascend", "npu", "atb", "vllm"})
_QUERIES = frozenset({"npu::get_npu_format", "npu::npu_format_cast"})  # they compute nothing
_MOST_VALUES = 1 << 16  # of a list of numbers
_FRACTAL_NZ = 29
_PLAIN = (0, 1, 2, 30, 47)  # formats of ACL in which a tensor has its own shape
# What torch_npu calls a plain tensor of so many dimensions when it launches a kernel.
_BY_DIMS = {3: "NCL", 4: "NCHW", 5: "NCDHW"}
# The names of arguments in the first version of a function for those of its second.
_SAME = {
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "num_query_heads": "num_heads",
}
_ATTENTION_SHAPES = ("query", "key", "value", "atten_mask", "block_table")
_ATTENTION_VALUES = (
    *("actual_seq_lengths", "actual_seq_lengths_kv", "num_heads", "num_key_value_heads"),
    *("sparse_mode", "pre_tokens", "input_layout", "block_size"),
)
Line = dict[str, Any]


class CustomCalls(DispatchObserver):
    """Logs the custom operators that run while `step` is a number."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self._rank, self._order = rank, 0
        self._step: int | None = None

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def step(self) -> int | None:
        return self._step

    @step.setter
    def step(self, number: int | None) -> None:
        if number != self._step:
            self._step, self._order = number, 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if self._step is not None and func.namespace in _NAMESPACES and name not in _QUERIES:
            self._add(operator_line(func, args, kwargs or {}, out))
        return out

    def launched(self, kernel: Any, arguments: Mapping[str, Any]) -> None:
        """Log the launch of a Triton kernel."""
        if self._step is not None:
            self._add(triton_line(kernel, arguments))

    def _add(self, line: Line) -> None:
        self.lines.append({"rank": self._rank, "step": self._step, "order": self._order, **line})
        self._order += 1

    def as_bytes(self) -> bytes:
        """Return the lines as JSON."""
        return "".join(json.dumps(line) + "\n" for line in self.lines).encode()


def load_operators() -> None:
    """Load the declarations of operators, so that the first recorded step does not."""
    all_ops()


def operator_line(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Line:
    """Return what is known of a call: its kernels by the catalogue, its cells where each tensor has
    a slot of a known name, and its arguments."""
    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | {**kwargs}
    named: dict[str, Any] = {
        _SAME.get(name, str(name)): value for name, value in given.items() if value is not None
    }
    name = func._schema.name
    ops = operators_of(name.partition("::")[2])
    kernels = list(dict.fromkeys(kernel for op in ops for kernel in (op.kernel, *op.twins)))
    line: Line = {"operator": name, "kernels": kernels}
    if ops and are_shown(ops) and (cells := _cells(ops[0], named, out)):
        line["cells"] = cells
    line["arguments"] = {name: described(value) for name, value in named.items()}
    return line | (_attention(named) if fused_attention().kernel in kernels else {})


def are_shown(ops: Sequence[OpSpec]) -> bool:
    """Return whether rows of the kernels show the tensors of their call."""
    return not any(op.is_shown_otherwise for op in ops)


def triton_line(kernel: Any, arguments: Mapping[str, Any]) -> Line:
    """Return what is known of a launch; its source shows which tensors it reads and writes."""
    name = kernel.fn.__name__
    layout = import_module("collector.engine.site.opmeter_pointers").layout(kernel, arguments)
    texts = [*map(_text, arguments.values()), f'"{layout}"']
    call = parse_call(f"CUSTOM triton.{name}({', '.join(texts)})")
    described_ = {name: described(value) for name, value in arguments.items()}
    found: Line = {"operator": f"triton.{name}", "kernels": [name], "cells": cells_of(call)}
    return {**found, "arguments": described_}


@contextmanager
def triton_launches(log: Callable[[Any, Mapping[str, Any]], None]) -> Iterator[None]:
    """Have the launches of Triton's kernels logged, if the program has imported Triton."""
    module = sys.modules.get("triton.runtime.jit")
    if module is None:
        yield
        return
    original = module.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        done = original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if not warmup:
            given = {name: value for name, value in kwargs.items() if name in self.arg_names}
            bound = inspect.signature(self.fn).bind(*args, **given)
            bound.apply_defaults()
            log(self, bound.arguments)
        return done

    module.JITFunction.run = run
    try:
        yield
    finally:
        module.JITFunction.run = original


def described(value: Any) -> Any:
    """Return an argument as JSON: shapes of tensors, values of numbers, texts and lists of them."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        found: Line = {"shape": list(value.shape), "dtype": dtype, "format": _format(value)}
        if value.device.type == "cpu" and not dtype.startswith("float") and value.dim() == 1:
            found["values"] = value[:_MOST_VALUES].tolist()  # of a device, reading would wait
        return found
    if isinstance(value, (list, tuple)):
        return [described(one) for one in value[:_MOST_VALUES]]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


@cache
def operators_of(name: str) -> tuple[OpSpec, ...]:
    """Return the declarations that an operator of torch launches; a later version without one
    launches those of the first."""
    found = tuple(
        op
        for op in all_ops()
        if not op.call.startswith(("vllm_ascend.", "vllm."))  # functions of Python
        and name in (op.call.rpartition(".")[2], op.npu.served.rpartition(".")[2])
    )
    base, is_version, version = name.rpartition("_v")
    return found or (operators_of(base) if is_version and version.isdigit() else ())


def _cells(op: OpSpec, named: Mapping[str, Any], out: Any) -> dict[str, str]:
    """Return the cells of a call by the names of its slots; empty if a tensor has none."""
    slots = _slot_names(op, tuple(name for name, value in named.items() if _has_tensors(value)))
    if not slots:
        return {}
    inputs = [named.get(name) for name in slots]
    outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    how = As.STORED if is_product(op.kernel) else ""  # a transposed view is its weight
    texts = ", ".join(map(_text, [*inputs, *outputs]))
    return _in_order(f"CUSTOM {op.kernel}({texts})", len(inputs), how)


def _slot_names(op: OpSpec, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Return the argument of each slot: that of its name; of the other arguments, in order, those
    of the required slots without one. Empty if an argument remains."""
    others = [name for name in tensors if name not in op.slots]
    required = [
        name for at, name in enumerate(op.slots) if at not in op.optional and name not in tensors
    ]
    if len(others) != len(required):
        return ()
    renamed = dict(zip(required, others, strict=True))
    return tuple(renamed.get(name, name) for name in op.slots)


@lru_cache(maxsize=4096)
def _in_order(call: str, inputs: int, how: As | str) -> dict[str, str]:
    return cells_in_order(parse_call(call), inputs, how)


def _attention(named: Mapping[str, Any]) -> Line:
    """Return the keys of a line that the backfill of fused attention reads."""
    shapes = {
        f"{name}_shape": list(value.shape) if (value := named.get(name)) is not None else []
        for name in _ATTENTION_SHAPES
    }
    values = {name: described(named[name]) for name in _ATTENTION_VALUES if name in named}
    for name in ("actual_seq_lengths", "actual_seq_lengths_kv"):
        if isinstance(value := values.get(name), dict):  # a tensor
            values[name] = value.get("values")
    return {**shapes, **{name: value for name, value in values.items() if value is not None}}


def _has_tensors(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(one, torch.Tensor) for one in values)


def _text(value: Any) -> str:
    """Return an argument as the recording runtime writes it."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        if _has_tensors(value):
            return f"{{{', '.join(map(_text, value))}}}"
        return f"ints({','.join(map(str, value))})"
    return str(int(value)) if isinstance(value, (bool, int)) else "0"


def _tensor(value: torch.Tensor) -> str:
    name, shape = _format(value), list(value.shape)
    dtype = DTYPE_WORDS.get(str(value.dtype).removeprefix("torch."), "undefined")
    text = f"{dtype}[{_listed(shape)}]:{name}"
    if not value.is_contiguous():
        text += f"/{_listed(value.stride())}"
    if name == "FRACTAL_NZ" and len(shape) > 1:
        *outer, rows, columns = shape
        width = 32 // value.element_size()
        text += f"<{_listed([*outer, -(-columns // width), -(-rows // 16), 16, width])}>"
    return text


def _format(value: torch.Tensor) -> str:
    if value.device.type != "npu":
        return "ND"
    number = import_module("torch_npu").get_npu_format(value)
    if number in _PLAIN:
        return _BY_DIMS.get(value.dim(), "ND")
    return "FRACTAL_NZ" if number == _FRACTAL_NZ else f"FORMAT_{number}"


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
