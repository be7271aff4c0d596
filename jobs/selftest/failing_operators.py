"""Operators that fail in defined ways, and one with a concurrent kernel.

They are the catalogue of the sessions of `jobs/selftest/attribution.py`. All other kernel types are
replayed as declared.
"""

import os
import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from collector.ops import registry
from collector.ops.references import multiplication
from collector.ops.spec import NpuCall, OpSpec

_TOO_LARGE = 1 << 58  # bytes: more than any device has, without overflow of a counter


def find_operator(kernel_type: str) -> OpSpec | None:
    """Return the operator of a kernel type: a failing one, or the declared one."""
    return _FAILING.get(kernel_type) or registry.find_operator(kernel_type)


def _trouble(kernel: str, reference: Callable[..., Any], npu: NpuCall | None = None) -> OpSpec:
    return OpSpec(
        kernel=kernel,
        call="torch.add",
        signature="x, y -> z",
        reference=reference,
        flops=lambda case: sum(slot.numel for slot in case.inputs or ()),
        npu=npu or NpuCall(run=lambda api, *args: reference(_torch(), *args)),
    )


def _torch() -> Any:
    import importlib

    return importlib.import_module("torch")  # in a session, which has imported torch already


def _too_large(torch: Any, x: Any, y: Any) -> Any:
    return torch.empty(_TOO_LARGE, dtype=torch.int8, device=x.device)


def _bad_argument(torch: Any, x: Any, y: Any) -> Any:
    return torch.add(x, torch.cat((y, y)))


def _killed(torch: Any, x: Any, y: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _alone(torch: Any, x: Any, y: Any) -> Any:
    return torch.mul(x, y)


def _with_busy_stream(api: Callable[..., Any], x: Any, y: Any) -> Any:
    """Return a product, while another stream of the device is busy."""
    torch = _torch()
    other = torch.npu.Stream()
    other.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(other):
        torch.erf(x)
    product = torch.mul(x, y)
    torch.npu.current_stream().wait_stream(other)
    return product


_PRODUCT = multiplication(1).kernel_type
_FAILING: Mapping[str, OpSpec] = MappingProxyType(
    {
        "OpmeterTooLarge": _trouble("OpmeterTooLarge", _too_large),
        "OpmeterBadArgument": _trouble("OpmeterBadArgument", _bad_argument),
        "OpmeterKilled": _trouble("OpmeterKilled", _killed),
        _PRODUCT: _trouble(_PRODUCT, _alone, NpuCall(run=_with_busy_stream)),
    }
)
