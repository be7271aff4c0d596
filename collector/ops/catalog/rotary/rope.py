"""Rotary position embeddings with cos and sin given for each token."""

from collections.abc import Sequence
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.launching import Positions, arguments_at
from collector.ops.parts import like, tensors
from collector.ops.slots import (
    broadcast,
    elements,
    given,
    input_shape,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# Rotations whose cos and sin are as wide as x: their tensors, and the shapes that fit.


def build_rotary(case: Case, make: TensorMaker) -> Call:
    """Build x, cos and sin."""
    x, cos, _ = case.inputs or ()
    positions = tensors.make_positions(make, cos.shape or (), cos.dtype)
    return Call(like.normal(x, make), *positions)


_BROADCASTS = Constraint(
    "expected cos and sin that broadcast to x",
    lambda case: broadcast(input_shape(case, 0), input_shape(case, 1)) == input_shape(case, 0),
)
# The rules of npu_rotary_mul where it does not compile (jit_compile=False).
_LIMITS = "d % 2 == 0, d < 896"

# Rotary positions of queries and keys in one call, half mode, in place.
_LAYOUTS = {3: "TND", 4: "BSND"}


def _apply_build(case: Case, make: TensorMaker) -> Call:
    query, key, cos, _ = case.inputs or ()
    turned = like.normal(query, make), like.normal(key, make)
    positions = tensors.make_positions(make, cos.shape or (), cos.dtype)
    return Call(*turned, *positions, layout=_LAYOUTS[len(query.shape or ())])


def _apply_reference(torch: Any, query: Any, key: Any, cos: Any, sin: Any, *, layout: str) -> Any:
    turned = ((x * cos).addcmul_(tensors.rotate(torch, x), sin) for x in (query, key))
    return tuple(x.copy_(new) for x, new in zip((query, key), turned, strict=True))


APPLY_ROTARY_POS_EMB = OpSpec(
    kernel="ApplyRotaryPosEmb",
    call="torch_npu.npu_apply_rotary_pos_emb",
    # on A2 and A3 heads have 64 or 128 elements
    signature="query T:float[*t, heads, d], key T[*t, kv_heads, d], cos T[*t, 1, d], "
    "sin T[*t, 1, d] -> query T[*t, heads, d], key T[*t, kv_heads, d]"
    " where t_rank == 1 or t_rank == 2, d == 64 or d == 128",
    reference=_apply_reference,
    build=_apply_build,
    operations="3 * t * (heads + kv_heads) * d",
    constraints=(rules.NOTHING_EMPTY,),
    lookups=(
        *make_lookups("tensor_cast.apply_rope.default", order=3, tc_input_count=2),
        *make_lookups("tensor_cast.apply_rope_single.default", order=3, tc_input_count=1),
    ),
    launched_by={"aclnnApplyRotaryPosEmbV2": arguments_at(outputs=0)},
)

# Rotary positions of interleaved pairs; the result has the halves one after the other.


def _interleave_reference(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    halves = tensors.halves_first(x)
    return (halves * cos).addcmul_(tensors.rotate(torch, halves), sin)


INTERLEAVE_ROPE = OpSpec(
    kernel="InterleaveRope",
    call="torch_npu.npu_interleave_rope",
    signature="x T:half[b, n, s, 64], cos T[b, 1, p, 64], sin T[b, 1, p, 64] -> y T[b, n, s, 64]"
    " where p == s or p == 1",
    reference=_interleave_reference,
    build=build_rotary,
    operations="3 * b * n * s * 64",
    constraints=(rules.NOTHING_EMPTY,),
    lookups=(
        *make_lookups("tensor_cast.apply_rope.default", order=2, tc_input_count=2),
        *make_lookups("tensor_cast.apply_rope_single.default", order=2, tc_input_count=1),
    ),
)

# Rotary positions of interleaved pairs in the last dimensions of each head, in place.
#
# DeepSeek-V4 rotates 64 of 512 numbers, and of 128 in its indexer. vLLM-Ascend 0.23 serves it by
# this kernel of its own library (`vllm_ascend/attention/dsa_v1.py`). A row has the size of the
# slice, and not its place.
_INTERLEAVE = "interleave"


def _partial_build(case: Case, make: TensorMaker) -> Call:
    x, cos, _ = case.inputs or ()
    shape, size = input_shape(case, 1), input_shape(case, 0)[-1]
    return Call(
        like.normal(x, make),
        *tensors.make_pairs(make, shape, cos.dtype),
        rotary_mode=_INTERLEAVE,
        partial_slice=[size - shape[-1], size],
    )


def _partial_reference(
    torch: Any, x: Any, cos: Any, sin: Any, *, rotary_mode: str, partial_slice: list[int]
) -> Any:
    part = x[..., slice(*partial_slice)]
    wide = part.float()
    a, b = wide.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((-b, a), -1).flatten(-2)
    part.copy_((wide * cos).addcmul_(turned, sin))
    return x


def _partial_launch(api: Any, x: Any, *others: Any, **how: Any) -> Any:
    """Call the function, which returns nothing."""
    api(x, *others, **how)
    return x


def _partial_traffic(case: Case) -> int:
    """Return the bytes: the slice read and written, cos and sin read."""
    x, cos, sin = case.inputs or ()
    share = elements(input_shape(case, 0)[:-1]) * input_shape(case, 1)[-1]
    return 2 * rules.accepted(x.known_dtype).bytes_of(share) + cos.size_bytes + sin.size_bytes


INPLACE_PARTIAL_ROTARY_MUL = OpSpec(
    kernel="InplacePartialRotaryMul",
    call="torch.ops._C_ascend.inplace_partial_rotary_mul",
    assumes="interleaved pairs in the last dimensions of x",
    signature="x T:float[b, s, n, d], cos C:float[p, q, r, part], sin C[p, q, r, part]"
    " -> x T[b, s, n, d] where p == b or p == 1, q == s or q == 1, r == n or r == 1, "
    "0 < part <= d, part % 2 == 0",
    reference=_partial_reference,
    build=_partial_build,
    operations="3 * b * s * n * part",
    traffic=_partial_traffic,
    npu=NpuCall(run=_partial_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(rules.NOTHING_EMPTY,),
    launched_by={"aclnnInplacePartialRotaryMul": arguments_at(outputs=0)},
)

# Rotary positions, half mode: x * cos + rotate(x) * sin, with cos and sin for each position.
ROTARY_POSITION_EMBEDDING = OpSpec(
    kernel="RotaryPositionEmbedding",
    twins=("RotaryMul",),  # before aclnn
    call="torch_npu.npu_rotary_mul",
    signature="x T:floating[b, s, n, d], cos T[*p, d], sin T[*p, d] -> y T[b, s, n, d]"
    f" where {_LIMITS}",
    reference=lambda torch, x, cos, sin: (x * cos).addcmul_(tensors.rotate(torch, x), sin),
    build=build_rotary,
    operations="3 * b * s * n * d",  # two products and a sum
    constraints=(_BROADCASTS,),
)

# Gradient of rotary positions: of x; also of cos and sin where the row has x itself.
_X = 3


def _grad_build(case: Case, make: TensorMaker) -> Call:
    dy, cos, *_ = case.inputs or ()
    gradient, x = like.normal(dy, make), given(case, _X)
    positions = tensors.make_positions(make, cos.shape or (), cos.dtype)
    return Call(gradient, *positions, *([like.normal(x, make)] if x else []))


def _npu_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; it passes x to the kernel only if cos and sin require gradients.

    Only then does the kernel return their gradients."""
    dy, cos, sin, *x = _grad_build(case, make).args
    if x:
        cos.requires_grad_()
        sin.requires_grad_()
    return Call(dy, *(x or [dy]), cos, sin)


def _npu_run(api: Any, dy: Any, x: Any, cos: Any, sin: Any) -> Any:
    dx, dcos, dsin = api(dy, x, cos, sin)
    return (dx, dcos, dsin) if cos.requires_grad else (dx, None, None)


def _grad_reference(torch: Any, dy: Any, cos: Any, sin: Any, x: Any = None) -> Any:
    a, b = (dy * sin).chunk(2, -1)
    dx = torch.cat((b, -a), -1).addcmul_(dy, cos)
    if x is None:
        return dx, None, None
    dcos, dsin = dy * x, dy * tensors.rotate(torch, x)
    return dx, dcos.sum_to_size(cos.shape), dsin.sum_to_size(sin.shape)


def _positions_with_tables(arguments: Sequence[str]) -> Positions:
    """The gradients of cos and sin are not written without x."""
    return arguments_at(outputs=5, empty=("dcos", "dsin") if arguments[3] == "0" else ())


ROTARY_POSITION_EMBEDDING_GRAD = OpSpec(
    kernel="RotaryPositionEmbeddingGrad",
    call="torch_npu.npu_rotary_mul_backward",
    signature="dy T:floating[b, s, n, d], cos T[*p, d], sin T[*p, d], x T[b, s, n, d]?"
    " -> dx T[b, s, n, d], dcos T[*p, d]?, dsin T[*p, d]?"
    f" where {_LIMITS}, has_dcos == has_x, has_dsin == has_x",
    reference=_grad_reference,
    build=_grad_build,
    npu=NpuCall(run=_npu_run, build=_npu_build),
    # two products and a sum, and two of each for cos and sin
    operations="(3 + 4 * has_x) * b * s * n * d",
    constraints=(_BROADCASTS,),
    launched_by={"aclnnRotaryPositionEmbeddingGrad": _positions_with_tables},
)
