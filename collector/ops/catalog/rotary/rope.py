"""Rotary position embeddings with cos and sin given for each token."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import looked_up
from collector.ops import rules
from collector.ops.parts import like, tensors
from collector.ops.slots import (
    agrees,
    broadcast,
    elements,
    given,
    input_shape,
    output_shape,
    outputs_agree,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# Rotations whose cos and sin are as wide as x: their tensors, and the shapes that fit.


def build(case: Case, make: TensorMaker) -> Call:
    """Build x, cos and sin."""
    x, cos, _ = case.inputs or ()
    positions = tensors.make_positions(make, cos.shape or (), cos.dtype)
    return Call(like.normal(x, make), *positions)


def _positions_fit(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    halves = bool(x) and x[-1] % 2 == 0 and cos[-1:] == x[-1:]
    return halves and cos == sin and broadcast(x, cos) == x


POSITIONS_FIT = Constraint(
    "expected an even last dimension, and cos and sin that broadcast to x", _positions_fit
)
# The rules of npu_rotary_mul where it does not compile (jit_compile=False).
_MOST = 896
FOUR_DIMENSIONS = Constraint(
    f"expected 4 dimensions, the last one below {_MOST}",
    lambda case: len(input_shape(case, 0)) == 4 and input_shape(case, 0)[-1] < _MOST,
)

# Rotary positions of queries and keys in one call, half mode, in place.
_SIZES = (64, 128)  # elements of a head, on A2 and A3
_LAYOUTS = {3: "TND", 4: "BSND"}


def _apply_build(case: Case, make: TensorMaker) -> Call:
    query, key, cos, _ = case.inputs or ()
    turned = like.normal(query, make), like.normal(key, make)
    positions = tensors.make_positions(make, cos.shape or (), cos.dtype)
    return Call(*turned, *positions, layout=_LAYOUTS[len(query.shape or ())])


def _apply_reference(torch: Any, query: Any, key: Any, cos: Any, sin: Any, *, layout: str) -> Any:
    turned = ((x * cos).addcmul_(tensors.rotate(torch, x), sin) for x in (query, key))
    return tuple(x.copy_(new) for x, new in zip((query, key), turned, strict=True))


def _apply_fits(case: Case) -> bool:
    query, key, cos, sin = (input_shape(case, i) for i in range(4))
    if len(query) not in _LAYOUTS or query[-1] not in _SIZES or len(key) != len(query):
        return False
    tokens, size = query[:-2], query[-1]
    return (
        (key[:-2], key[-1]) == (tokens, size)
        and cos == sin == (*tokens, 1, size)
        and outputs_agree(case, query, key)
    )


APPLY_ROTARY_POS_EMB = OpSpec(
    kernel="ApplyRotaryPosEmb",
    call="torch_npu.npu_apply_rotary_pos_emb",
    slots=("query", "key", "cos", "sin"),
    reference=_apply_reference,
    build=_apply_build,
    flops=lambda case: 3 * sum(elements(input_shape(case, i)) for i in range(2)),
    constraints=(
        Constraint(
            "expected queries and keys (B,S,N,D) or (T,N,D) with heads of 64 or 128, and cos "
            "and sin with one head",
            _apply_fits,
        ),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.FLOATS, (0,)),
        rules.one_dtype((0, 1, 2, 3), (0, 1)),
    ),
    lookups=(
        *looked_up("tensor_cast.apply_rope.default", order=3, tc_input_count=2),
        *looked_up("tensor_cast.apply_rope_single.default", order=3, tc_input_count=1),
    ),
)

# Rotary positions of interleaved pairs; the result has the halves one after the other.
_SIZE = 64  # the only size that the kernel supports


def _interleave_reference(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    halves = tensors.halves_first(x)
    return (halves * cos).addcmul_(tensors.rotate(torch, halves), sin)


def _interleave_fits(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    if len(x) != 4 or x[3] != _SIZE or cos != sin or not outputs_agree(case, x):
        return False
    return cos in ((x[0], 1, x[2], _SIZE), (x[0], 1, 1, _SIZE))


INTERLEAVE_ROPE = OpSpec(
    kernel="InterleaveRope",
    call="torch_npu.npu_interleave_rope",
    slots=("x", "cos", "sin"),
    reference=_interleave_reference,
    build=build,
    flops=tensors.per_element(3),
    constraints=(
        Constraint(
            "expected x (B,N,S,64), and cos and sin (B,1,S,64) or (B,1,1,64)", _interleave_fits
        ),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.HALF_DTYPES, (0,)),
        rules.one_dtype((0, 1, 2)),
    ),
    lookups=(
        *looked_up("tensor_cast.apply_rope.default", order=2, tc_input_count=2),
        *looked_up("tensor_cast.apply_rope_single.default", order=2, tc_input_count=1),
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


def _partial_fits(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    if len(x) != 4 or len(cos) != 4 or cos != sin or not outputs_agree(case, x):
        return False
    is_part = 0 < cos[3] <= x[3] and cos[3] % 2 == 0
    return is_part and broadcast(x[:3], cos[:3]) == x[:3]


def _partial_traffic(case: Case) -> int:
    """Return the bytes: the slice read and written, cos and sin read."""
    x, cos, sin = case.inputs or ()
    share = elements(input_shape(case, 0)[:-1]) * input_shape(case, 1)[-1]
    return 2 * rules.accepted(x.known_dtype).bytes_of(share) + cos.size_bytes + sin.size_bytes


INPLACE_PARTIAL_ROTARY_MUL = OpSpec(
    kernel="InplacePartialRotaryMul",
    call="torch.ops._C_ascend.inplace_partial_rotary_mul",
    assumes="interleaved pairs in the last dimensions of x",
    slots=("x", "cos", "sin"),
    reference=_partial_reference,
    build=_partial_build,
    flops=lambda case: 3 * elements(input_shape(case, 0)[:-1]) * input_shape(case, 1)[-1],
    traffic=_partial_traffic,
    npu=NpuCall(run=_partial_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(
        Constraint(
            "expected x of four dimensions and an output like it, and cos and sin that broadcast "
            "to it, of an even size up to that of x",
            _partial_fits,
        ),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.FLOATS, (0, 1)),
        rules.one_dtype((0,)),
        rules.one_dtype((1, 2), ()),
    ),
)

# Rotary positions, half mode: x * cos + rotate(x) * sin, with cos and sin for each position.
ROTARY_POSITION_EMBEDDING = OpSpec(
    kernel="RotaryPositionEmbedding",
    twins=("RotaryMul",),  # before aclnn
    call="torch_npu.npu_rotary_mul",
    slots=("x", "cos", "sin"),
    reference=lambda torch, x, cos, sin: (x * cos).addcmul_(tensors.rotate(torch, x), sin),
    build=build,
    flops=tensors.per_element(3),  # two products and a sum
    constraints=(
        POSITIONS_FIT,
        FOUR_DIMENSIONS,
        rules.floating((0,)),
        rules.one_dtype((0, 1, 2)),
        rules.LIKE_INPUT,
    ),
)

# Gradient of rotary positions: of x; also of cos and sin where the row has x itself.
_X = 3
_DCOS, _DSIN = 1, 2


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


def _outputs_fit(case: Case) -> bool:
    if given(case, _X) is None:
        return not any(output_shape(case, i) for i in (_DCOS, _DSIN))
    return agrees(case, _DCOS, input_shape(case, 1)) and agrees(case, _DSIN, input_shape(case, 2))


ROTARY_POSITION_EMBEDDING_GRAD = OpSpec(
    kernel="RotaryPositionEmbeddingGrad",
    call="torch_npu.npu_rotary_mul_backward",
    slots=("dy", "cos", "sin", "x"),
    optional=frozenset({_X}),
    optional_outputs=frozenset({_DCOS, _DSIN}),
    reference=_grad_reference,
    build=_grad_build,
    npu=NpuCall(run=_npu_run, build=_npu_build),
    # two products and a sum, and two of each for cos and sin
    flops=lambda case: (7 if given(case, _X) else 3) * elements(input_shape(case, 0)),
    constraints=(
        POSITIONS_FIT,
        rules.floating((0,)),
        rules.one_dtype((0, 1, 2, _X), (0, _DCOS, _DSIN)),
        Constraint(
            "expected x with the shape of dy",
            lambda case: given(case, _X) is None or input_shape(case, _X) == input_shape(case, 0),
        ),
        rules.LIKE_INPUT,
        Constraint(
            "expected gradients of cos and sin, in their shapes, only if there is x", _outputs_fit
        ),
        FOUR_DIMENSIONS,
    ),
)
