"""Which kernel a recorded call launches, by the declarations of operators.

The name of a call names its kernel, but for a version, `Inplace` and `WeightNz`, which not every
kernel has in its name; other calls are in `launched_by` of their operator. A function of a serving
stack launches the kernel whose operator calls it. `choices.py` has the calls of several kernels.
One call is one kernel here, as long as nothing else is known.
"""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from collector.engine.calls import Recorded
from collector.engine.choices import CHOSEN
from collector.model.measurement import Library
from collector.ops.registry import declarations, find_operator
from collector.ops.spec import OpSpec, library_of

_TRITON = "triton."  # a kernel that opmeter_launches recorded instead of compiling it
_EXTENSION = "torch.ops._C_ascend"  # of vLLM-Ascend; functions of Python may have the same names
_VERSION = re.compile(r"(WeightN[zZ]|V\d)+$")
_ACLNN, _IN_PLACE = "aclnn", "aclnnInplace"
_NO_OPERATORS = {
    "aclnnTransQuantParamV3": "TransQuantParamV2",  # while a case is built
    # of several kernels, which are recorded by their own names
    **dict.fromkeys(("l2norm_fwd", "rejection_sample", "set_inputs_first_pass", "solve_tril"), ""),
    "split_qkv_tp_rmsnorm_rope": "",
}


def kernel_of(call: Recorded) -> str:
    """The OP Type of a call, as msprof prints it: empty where no kernel runs. Of a call that no
    declaration knows it is the name without `aclnn`."""
    if call.kind == "HOST":
        return ""
    if call.kind == "HCCL":
        name = call.name.removeprefix("Hccl")
        return f"hcom_{name[0].lower()}{name[1:]}_"
    if call.kind == "CUSTOM" and call.name.startswith(_TRITON):
        return call.name.removeprefix(_TRITON)
    if chosen := CHOSEN.get(call.name):
        return chosen(call)
    known = launching_calls()
    found = known.get(call.name, known.get(call.name.replace(_IN_PLACE, _ACLNN)))
    return _named(call.name) if found is None else found


def operator_of(call: Recorded) -> OpSpec | None:
    """The operator whose arguments a call has: that of its kernel, or if none declares the kernel,
    such as CumsumCube, the one that declares the call."""
    return find_operator(kernel_of(call)) or _declaring().get(call.name)


@cache
def _declaring() -> Mapping[str, OpSpec]:
    return {name: op for op in declarations() for name in op.launched_by}


def calls_of(kernel: str) -> tuple[str, ...]:
    """The recorded names that may launch a kernel."""
    named = (name for name, known in launching_calls().items() if known == kernel)
    return (f"{_ACLNN}{kernel}", *named, *CHOSEN)


@cache
def launching_calls() -> Mapping[str, str]:
    """The kernels of calls whose names do not name them. Raises ValueError where two operators
    declare one call."""
    functions, of_extension, found = dict(_NO_OPERATORS), dict[str, str](), dict[str, str]()
    for op in declarations():
        for function in (op.call, op.npu.served):
            package, _, name = function.rpartition(".")
            if package == _EXTENSION:
                of_extension |= {name: op.kernel, f"_C_ascend.{name}": op.kernel}
            elif library_of(function) == Library.VLLM_ASCEND:
                functions.setdefault(name, op.kernel)
        for name in op.launched_by:
            if name not in CHOSEN and found.setdefault(name, op.kernel) != op.kernel:
                raise ValueError(f"{name}: expected one kernel, got {found[name]} and {op.kernel}")
    return MappingProxyType(of_extension | functions | found)


def _named(name: str) -> str:
    """The kernel that a call names."""
    base = name.removeprefix(_ACLNN)
    plain = name.replace(_IN_PLACE, _ACLNN).removeprefix(_ACLNN)
    return next(
        filter(find_operator, (base, plain, _VERSION.sub("", plain))), base.removesuffix("Param")
    )
