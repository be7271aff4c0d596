"""Join of attention over parts of the keys, by the log-sum-exp of each part."""

from typing import Any

from collector.model.case import Case, Slot
from collector.model.vocabulary import dtype_of
from collector.ops.catalog.attention._sizes import named_output
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.slots import output_agrees
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_FLOAT = dtype_of("FLOAT")
_MOST_PARTS = 16


def _parts(case: Case) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """Return the log-sum-exps (N) and as many partial outputs (N, D)."""
    slots = case.inputs or ()
    half = len(slots) // 2
    return slots[:half], slots[half:]


def _build(case: Case, make: TensorMaker) -> Call:
    sums, outputs = ([like.normal(slot, make) for slot in side] for side in _parts(case))
    return Call(sums, outputs, returns_lse=named_output(case, 1) is not None)


def _reference(torch: Any, sums: Any, outputs: Any, *, returns_lse: bool) -> Any:
    stacked = torch.stack(sums)
    joined = stacked.logsumexp(0)
    weights = stacked.sub_(joined).exp_().unsqueeze(-1)
    out = outputs[0].float() * weights[0]
    for part, weight in zip(outputs[1:], weights[1:], strict=True):
        out.addcmul_(part.float(), weight)
    return out.to(outputs[0].dtype), joined if returns_lse else None


def _launch(api: Any, sums: Any, outputs: Any, *, returns_lse: bool) -> Any:
    out, lse = api(sums, outputs, int(returns_lse))
    return out, lse if returns_lse else None


def _flops(case: Case) -> int:
    """Return the operations: 2 for each number of a part, about as many for each log-sum-exp."""
    sums, outputs = _parts(case)
    return 2 * sum(slot.numel for slot in (*sums, *outputs))


def _fits(case: Case) -> bool:
    sums, outputs = _parts(case)
    if not sums or len(sums) != len(outputs) or len(sums) > _MOST_PARTS:
        return False
    shape, dtypes = outputs[0].shape or (), {slot.known_dtype for slot in outputs}
    alike = {slot.shape for slot in sums} == {shape[:1]} and {s.shape for s in outputs} == {shape}
    if len(shape) != 2 or not all(shape) or not alike or not 8 <= shape[1] <= 512 or shape[1] % 8:
        return False
    named = (case.outputs or ())[:1]
    one_dtype = len(dtypes | {slot.known_dtype for slot in named}) == 1
    return (
        output_agrees(case, 0, shape) and one_dtype and all(s.known_dtype is _FLOAT for s in sums)
    )


ATTENTION_UPDATE = OpSpec(
    kernel="AttentionUpdate",
    is_shown_otherwise=True,
    call="torch_npu.npu_attention_update",
    signature="lse FLOAT[n], local_out float+ -> attention float, lse FLOAT[n]?",
    traffic=lambda case: dense_bytes(case),
    reference=_reference,
    build=_build,
    flops=_flops,
    npu=NpuCall(run=_launch),
    constraints=(
        Constraint(
            "expected 1 to 16 FLOAT sums (N), then as many outputs (N,D) of one dtype, with D of "
            "8, 16, 24 .. 512",
            _fits,
        ),
    ),
    launched_by={"aclnnAttentionUpdate": arguments_at(outputs=3, unknown="outputs")},
)
