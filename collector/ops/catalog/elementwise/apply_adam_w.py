"""One step of AdamW by the older of the two kernels, in place, its rates as scalars. A profile does
not tell them: torch's defaults here, ten steps in."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import agrees, given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_RATE, _DECAY, _BETA1, _BETA2, _EPSILON = 1e-3, 1e-2, 0.9, 0.999, 1e-8
_STEPS = 10
_POWERS = (_BETA1**_STEPS, _BETA2**_STEPS)
_VAR, _M, _V, _GRAD, _MAX_NORM = 0, 1, 2, 10, 11
_NUMBERS = range(3, 10)
_ALIKE = (_VAR, _M, _V, _GRAD)
_SLOTS = (
    *("var", "m", "v", "beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2"),
    *("epsilon", "grad", "max_grad_norm"),
)


def _build(case: Case, make: TensorMaker) -> Call:
    """`v`, a mean of squares, is positive. Launches stay finite: each moves `var` by about the
    rate."""
    var, m, v, grad = ((case.inputs or ())[i] for i in _ALIKE)
    return Call(
        (
            make.normal(var.shape or (), var.dtype),
            make.normal(m.shape or (), m.dtype),
            make.uniform(v.shape or (), v.dtype, 0.5, 1.5),
            make.normal(grad.shape or (), grad.dtype),
        )
    )


def _reference(torch: Any, var: Any, m: Any, v: Any, grad: Any) -> Any:
    var.mul_(1 - _RATE * _DECAY)
    m.lerp_(grad, 1 - _BETA1)
    v.mul_(_BETA2).addcmul_(grad, grad, value=1 - _BETA2)
    spread = v.div(1 - _POWERS[1]).sqrt_().add_(_EPSILON)
    var.addcdiv_(m, spread, value=-_RATE / (1 - _POWERS[0]))
    return var, m, v


def _run(step: Any, var: Any, m: Any, v: Any, grad: Any) -> Any:
    rates = (*_POWERS, _RATE, _DECAY, _BETA1, _BETA2, _EPSILON)
    step(*rates, grad, None, False, False, out=(var, m, v))
    return var, m, v


def _flops(case: Case) -> int:
    """An element: 1 for the decay, 3 for m, 4 for v, 3 for the root, its quotient and epsilon, 2
    for the update."""
    return 13 * (case.inputs or ())[_VAR].numel


def _traffic(case: Case) -> int:
    """Four tensors are read, and var, m and v written."""
    slots = case.inputs or ()
    return sum(slots[i].size_bytes for i in (*_ALIKE, _VAR, _M, _V))


def _fits(case: Case) -> bool:
    shape = input_shape(case, _VAR)
    alike = all(input_shape(case, i) == shape for i in _ALIKE)
    return alike and all(agrees(case, i, shape) for i in (_VAR, _M, _V))


OP = OpSpec(
    kernel="ApplyAdamW",
    call="torch_npu.npu_apply_adam_w",
    slots=_SLOTS,
    optional=frozenset({_MAX_NORM}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    constraints=(
        Constraint("var, m, v, grad and the outputs want one shape", _fits),
        floating((_VAR,)),
        one_dtype(_ALIKE, (_VAR, _M, _V)),
        Constraint(
            "rates want one number each",
            lambda case: all(input_shape(case, i) in ((), (1,)) for i in _NUMBERS),
        ),
        Constraint("amsgrad is not replayed", lambda case: given(case, _MAX_NORM) is None),
    ),
    npu=NpuCall(run=_run),
)
