"""Tokens copied once for each of their experts, in the order of experts, and counted.

With an INT8 output they are quantised at the same time. All experts of the row are taken as local.
"""

from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.catalog.moe import _routing
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.int8 import quantise_rows
from collector.ops.slots import (
    elements,
    given,
    input_shape,
    output_shape,
    output_slot,
    spelling,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_SCALE = _COUNTS = 2
_COUNT_MODE, _GATHER = 1, 0
_NOT, _DYNAMIC = -1, 1


def _quantises(case: Case) -> bool:
    x, expanded = (case.inputs or ())[0], output_slot(case, 0)
    return spelling(expanded) == "INT8" != spelling(x)


def build_init_routing(case: Case, make: TensorMaker) -> Call:
    x, choices, *_ = case.inputs or ()
    scale, experts = given(case, _SCALE), _routing.output_size(case, _COUNTS)
    rows, each = input_shape(case, 1)
    return Call(
        like.normal(x, make),
        _routing.make_choices(make, rows, each, experts, choices.dtype),
        scale=like.uniform_like(scale, make, 0.5, 1.5),
        active_num=rows * each,
        expert_num=experts,
        expert_tokens_num_type=_COUNT_MODE,
        expert_tokens_num_flag=True,
        quant_mode=_DYNAMIC if _quantises(case) else _NOT,
        active_expert_range=[0, experts],
        row_idx_type=_GATHER,
    )


def _npu_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; without any scale the last output is undefined.

    A scale exists if the row has one to pass through, or if rows are quantised."""
    call, rows = build_init_routing(case, make), (elements(input_shape(case, 1)),)
    has_scale = call.kwargs["scale"] is not None or _quantises(case)
    return Call(
        *call.args, **call.kwargs, scales=None if has_scale else _routing.unwritten(make, rows)
    )


def _npu_run(api: Any, *args: Any, scales: Any, **how: Any) -> Any:
    *outputs, given_scales = api(*args, **how)
    return *outputs, given_scales if scales is None else scales


def _reference(torch: Any, x: Any, choices: Any, **how: Any) -> Any:
    order, places = _routing.by_expert(choices)
    rows = order // choices.shape[1]
    expanded, scale = x.index_select(0, rows), how["scale"]
    counts = _routing.counts_of(torch, choices, how["expert_num"])
    if how["quant_mode"] == _NOT:
        # Without a scale this output is undefined.
        scales = x.new_ones(rows.shape, dtype=torch.float32) if scale is None else scale[rows]
        return expanded, places.int(), counts, scales
    wide = expanded.float()
    if scale is not None:
        wide = wide * scale.index_select(0, choices.flatten().index_select(0, order))
    quantised, scales = quantise_rows(torch, wide)
    return quantised, places.int(), counts, scales


def _scale_fits(case: Case) -> bool:
    """Return whether the scale is a factor per row, or to quantise a row per expert."""
    return len(input_shape(case, _SCALE)) in (0, 2 if _quantises(case) else 1)


def init_routing(kernel: str, call: str, needs: frozenset[Need] = frozenset()) -> OpSpec:
    """Return an operator of this kind; CANN's and vLLM-Ascend's kernels take the same arguments."""
    return OpSpec(
        kernel=kernel,
        call=call,
        assumes="each expert as likely for a token",
        signature="x T:float|INT8[t, h], expert_idx INT32[t, k], scale FLOAT[t]|[experts, h]?, "
        "-offset -> expanded_x T|INT8[t * k, h], expanded_row_idx INT32[t * k], "
        "expert_tokens INT64[experts]!, expanded_scale FLOAT[t * k] where k <= experts <= 10240",
        reference=_reference,
        build=build_init_routing,
        flops=lambda case: 4 * elements(output_shape(case, 0)) if _quantises(case) else 0,
        npu=NpuCall(run=_npu_run, build=_npu_build, needs=needs),
        constraints=(
            Constraint("expected a scale (t), or (experts, h) to quantise", _scale_fits),
            rules.NOTHING_EMPTY,
        ),
        launched_by={f"aclnn{kernel}": arguments_at(slots=4, outputs=-4)},
    )


# Tokens in the order of their experts: vLLM-Ascend's own kernel, which versions 0.18 and 0.23 use
# on A2 and A3 (`vllm_ascend/device/device_op.py`).
MOE_INIT_ROUTING_CUSTOM = init_routing(
    "MoeInitRoutingCustom",
    "torch.ops._C_ascend.npu_moe_init_routing_custom",
    frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
)

# Tokens in the order of their experts: CANN's own kernel.
MOE_INIT_ROUTING_V3 = init_routing("MoeInitRoutingV3", "torch_npu.npu_moe_init_routing_v2")
