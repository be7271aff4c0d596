"""One step of AdamW with decoupled weight decay, in place. A profile does not tell its rates:
torch's defaults here."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_RATE, _DECAY = 1e-3, 1e-2
_BETA1, _BETA2 = 0.9, 0.999
_EPSILON = 1e-8
_MAX_NORM = 5


def _build(case: Case, make: TensorMaker) -> Call:
    """A few steps in; `v`, a mean of squares, is positive. Launches stay finite: each moves
    `var` by about the rate."""
    var, m, v, grad, step = (case.inputs or ())[:_MAX_NORM]
    return Call(
        (
            make.normal(var.shape or (), var.dtype),
            make.normal(m.shape or (), m.dtype),
            make.uniform(v.shape or (), v.dtype, 0.5, 1.5),
            make.normal(grad.shape or (), grad.dtype),
            make.full(step.shape or (), step.dtype, 10),
        )
    )


def _reference(torch: Any, var: Any, m: Any, v: Any, grad: Any, step: Any) -> Any:
    # The corrections stay on the device: a number for the host would wait for the stream.
    rate = _RATE / (1 - torch.pow(_BETA1, step))
    spread = (1 - torch.pow(_BETA2, step)).sqrt_()
    var.mul_(1 - _RATE * _DECAY)
    m.lerp_(grad, 1 - _BETA1)
    v.mul_(_BETA2).addcmul_(grad, grad, value=1 - _BETA2)
    var.addcdiv_(m, v.sqrt().div_(spread * rate).add_(_EPSILON / rate), value=-1)
    return var, m, v


def _run(step_of_adamw: Any, var: Any, m: Any, v: Any, grad: Any, step: Any) -> Any:
    """One kernel a tensor, and a Sub: torch_npu hands it the steps before this one."""
    step_of_adamw(
        [var],
        [grad],
        [m],
        [v],
        [],
        [step],
        lr=_RATE,
        beta1=_BETA1,
        beta2=_BETA2,
        weight_decay=_DECAY,
        eps=_EPSILON,
        amsgrad=False,
        maximize=False,
    )
    return var, m, v


def _flops(case: Case) -> int:
    """An element: 1 for the decay, 3 for m, 4 for v, 3 for the root, its quotient and epsilon,
    2 for the update."""
    return 13 * (case.inputs or ())[0].numel


def _traffic(case: Case) -> int:
    """All inputs are read, and var, m and v written."""
    slots = case.inputs or ()
    return sum(slot.size_bytes for slot in (*slots[:_MAX_NORM], *slots[:3]))


def _alike(case: Case) -> bool:
    return len({slot.shape for slot in (case.inputs or ())[:4]}) == 1


OP = OpSpec(
    kernel="ApplyAdamWV2",
    call="torch._fused_adamw_",
    slots=("var", "m", "v", "grad", "step", "max_grad_norm"),
    optional=frozenset({_MAX_NORM}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    constraints=(
        Constraint("var, m, v and grad want one shape", _alike),
        floating((0,)),
        one_dtype((0, 1, 2, 3), (0, 1, 2)),
        Constraint("step wants one number", lambda case: input_shape(case, 4) in ((), (1,))),
        Constraint("amsgrad is not replayed", lambda case: given(case, _MAX_NORM) is None),
    ),
    npu=NpuCall(run=_run),
)
