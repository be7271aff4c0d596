"""One optimizer step of AdamW, in place, by the two kernels of CANN."""

from collections.abc import Callable, Sequence
from typing import Any

from collector.model.case import Case, Slot
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.spec import Call, NpuCall, OpSpec, TensorMaker

# One step of AdamW by the older of the two kernels, in place, with its rates as scalars. A profile
# does not record the rates: torch's defaults are used, after ten steps.

_RATE, _DECAY, _BETA1, _BETA2, _EPSILON = 1e-3, 1e-2, 0.9, 0.999, 1e-8
_STEPS = 10
# 1 for the decay, 3 for m, 4 for v, 3 for the root, its quotient and epsilon, 2 for the update
_OPERATIONS = "13 * s"
_POWERS = (_BETA1**_STEPS, _BETA2**_STEPS)
_VAR, _M, _V, _GRAD = 0, 1, 2, 10
_ALIKE = (_VAR, _M, _V, _GRAD)


def _tensors(slots: Sequence[Slot], make: TensorMaker) -> tuple[Any, ...]:
    """Build var, m, v and the gradient, with a positive `v`, a mean of squares.

    Repeated launches stay finite: each changes `var` by about the rate."""
    var, m, v, grad = slots
    squares = like.uniform_like(v, make, 0.5, 1.5)
    return like.normal(var, make), like.normal(m, make), squares, like.normal(grad, make)


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


def _bytes_of(*positions: int) -> Callable[[Case], int]:
    """Return the bytes of these inputs."""
    return lambda case: sum((case.inputs or ())[i].size_bytes for i in positions)


APPLY_ADAM_W = OpSpec(
    kernel="ApplyAdamW",
    call="torch_npu.npu_apply_adam_w",
    signature="var T:floating[*s], m T[*s], v T[*s], beta1_power[#], beta2_power[#], lr[#], "
    "weight_decay[#], beta1[#], beta2[#], epsilon[#], grad T[*s], -max_grad_norm"
    " -> var T[*s], m T[*s], v T[*s]",
    reference=_reference,
    build=lambda case, make: Call(*_tensors([(case.inputs or ())[i] for i in _ALIKE], make)),
    operations=_OPERATIONS,
    traffic=_bytes_of(*_ALIKE, _VAR, _M, _V),  # var, m and v are read and written
    npu=NpuCall(run=_run),
)


_V2_MAX_NORM = 5


def _v2_build(case: Case, make: TensorMaker) -> Call:
    *tensors, step = (case.inputs or ())[:_V2_MAX_NORM]
    return Call(*_tensors(tensors, make), like.full(step, make, _STEPS))


def _v2_reference(torch: Any, var: Any, m: Any, v: Any, grad: Any, step: Any) -> Any:
    # The corrections stay on the device: a copy to the host would wait for the stream.
    rate = _RATE / (1 - torch.pow(_BETA1, step))
    spread = (1 - torch.pow(_BETA2, step)).sqrt_()
    var.mul_(1 - _RATE * _DECAY)
    m.lerp_(grad, 1 - _BETA1)
    v.mul_(_BETA2).addcmul_(grad, grad, value=1 - _BETA2)
    var.addcdiv_(m, v.sqrt().div_(spread * rate).add_(_EPSILON / rate), value=-1)
    return var, m, v


def _v2_run(step_of_adamw: Any, var: Any, m: Any, v: Any, grad: Any, step: Any) -> Any:
    """Launch one kernel per tensor, and a Sub: torch_npu passes the number of earlier steps."""
    step_of_adamw(
        *([var], [grad], [m], [v], [], [step]),
        lr=_RATE,
        beta1=_BETA1,
        beta2=_BETA2,
        weight_decay=_DECAY,
        eps=_EPSILON,
        amsgrad=False,
        maximize=False,
    )
    return var, m, v


# One step of AdamW with decoupled weight decay, in place, with the same rates.
APPLY_ADAM_W_V2 = OpSpec(
    kernel="ApplyAdamWV2",
    call="torch._fused_adamw_",
    signature="var T:floating[*s], m T[*s], v T[*s], grad T[*s], step[#], -max_grad_norm"
    " -> var T, m T, v T",
    reference=_v2_reference,
    build=_v2_build,
    operations=_OPERATIONS,
    traffic=_bytes_of(*range(_V2_MAX_NORM), _VAR, _M, _V),
    npu=NpuCall(run=_v2_run),
    launched_by={"aclnnApplyAdamWV2": arguments_at(grad=4, step=5, outputs=0)},
)
