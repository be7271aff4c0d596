"""Operators that misbehave, for sessions in tests: named by `SessionSpec.catalog`, and found by the
session through PYTHONPATH. The others are the catalogue's own."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from collector.ops import registry
from collector.ops.spec import OpSpec


def _sleep(torch: Any, tensor: Any) -> Any:
    time.sleep(60)
    return tensor + 1


def _stop_everything(torch: Any, tensor: Any) -> Any:
    """Stop everything including the heartbeat."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return tensor + 1


def _crash(torch: Any, tensor: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)
    return tensor + 1


def _fail(torch: Any, tensor: Any) -> Any:
    torch.add(tensor, tensor)
    raise ValueError("this operator\nraises")


def _grow(torch: Any, tensor: Any) -> Any:
    """Allocate memory that its shapes do not include, faster than a launch ends."""
    held = []
    while True:
        held.append(torch.ones(1 << 24))
        time.sleep(0.02)


def _allocate_too_much(torch: Any, tensor: Any) -> Any:
    return torch.empty(1 << 50, dtype=torch.uint8)


def _not_finite(torch: Any, tensor: Any) -> Any:
    return tensor / torch.zeros(())


def _other_shape(torch: Any, tensor: Any) -> Any:
    return tensor.sum(dim=0)


def _with_a_companion(torch: Any, tensor: Any, *, calls: list[int]) -> Any:
    """Its first launch does more than the others."""
    if not calls:
        torch.cumsum(tensor, 0)
    calls.append(1)
    return torch.neg(tensor)


def _in_two_steps(torch: Any, tensor: Any) -> Any:
    return torch.abs(torch.neg(tensor))


def _build_with_calls(case: Any, make: Any) -> Any:
    from collector.ops.spec import Call

    slot = case.inputs[0]
    return Call(make.normal(slot.shape, slot.dtype), calls=[])


def _operator(name: str, reference: Callable[..., Any], **more: Any) -> OpSpec:
    return OpSpec(
        kernel=name, call="", signature="x -> y", reference=reference, flops=lambda case: 0, **more
    )


_OPERATORS = {
    op.kernel: op
    for op in (
        _operator("Sleep", _sleep),
        _operator("StopEverything", _stop_everything),
        _operator("Crash", _crash),
        _operator("Fail", _fail),
        _operator("Grow", _grow),
        _operator("AllocateTooMuch", _allocate_too_much),
        _operator("NotFinite", _not_finite),
        _operator("OtherShape", _other_shape),
        _operator("Companion", _with_a_companion, build=_build_with_calls),
        _operator("TwoSteps", _in_two_steps),
    )
}


def find_operator(kernel_type: str) -> OpSpec | None:
    return _OPERATORS.get(kernel_type) or registry.find_operator(kernel_type)
