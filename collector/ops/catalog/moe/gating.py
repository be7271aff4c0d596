"""The routers that choose experts for each token."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.moe._routing import chosen_by_output, make_choices, unwritten
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.slots import given, input_shape, output_shape
from collector.ops.spec import (
    Call,
    Need,
    NpuCall,
    OpSpec,
    TensorMaker,
    accepts,
    dense_bytes,
)

# The router turns scores into weights, and each token takes its best experts.
#
# A profile does not record the method. A row with a bias is taken as DeepSeek's: sigmoid, and with
# 256 experts only those of the best 4 of 8 groups. A row without a bias: softmax over all experts.
_BIAS = 1
_NORM = 2
_GROUPED_EXPERTS, _GROUPS, _BEST_GROUPS = 256, 8, 4
_EPSILON = 1e-20
_SQRT_SOFTPLUS = 2


def _groups(case: Case) -> tuple[int, int]:
    """Return the number of groups, and how many of them a token may choose from."""
    grouped = given(case, _BIAS) is not None and input_shape(case, 0)[-1] == _GROUPED_EXPERTS
    return (_GROUPS, _BEST_GROUPS) if grouped else (1, 1)


def _build(case: Case, make: TensorMaker) -> Call:
    x, *_ = case.inputs or ()
    bias = given(case, _BIAS)
    groups, best = _groups(case)
    return Call(
        like.normal(x, make),
        chosen_by_output(case),
        bias=like.normal(bias, make),
        k_group=best,
        group_count=groups,
        group_select_mode=1,
        renorm=0,
        norm_type=1 if bias else 0,
        routed_scaling_factor=1.0,
        eps=_EPSILON,
        norm=unwritten(make, input_shape(case, 0)) if output_shape(case, _NORM) else None,
    )


def _npu_run(api: Any, *args: Any, norm: Any, **how: Any) -> Any:
    """Run the call without writing the normalised scores.

    Engines do not request them (`out_flag`). vLLM-Ascend's own function requires `out_flag` as an
    argument."""
    if not accepts(api, "bias"):
        how = {**how, "bias_opt": how["bias"], "out_flag": False}
        del how["bias"]
    weights, chosen, _ = api(*args, **how)
    return weights, chosen, norm


def _reference(torch: Any, x: Any, k: int, *, norm: Any, **how: Any) -> Any:
    wide, bias, is_named = x.float(), how["bias"], norm is not None
    if how["norm_type"] == _SQRT_SOFTPLUS:
        norm = torch.nn.functional.softplus(wide).sqrt_()
    else:
        norm = wide.sigmoid() if how["norm_type"] else wide.softmax(-1)
    scores = norm if bias is None else norm + bias
    if how["group_count"] > 1:
        scores = _best_groups(torch, scores, how["group_count"], how["k_group"])
    if how.get("tid2eid") is not None:
        chosen = how["tid2eid"].index_select(0, how["input_ids"]).long()
    else:
        chosen = scores.topk(k, -1).indices
    weights = norm.gather(-1, chosen)
    if how["norm_type"]:
        weights = weights / (weights.sum(-1, keepdim=True) + how["eps"])
    weights = weights.mul_(how["routed_scaling_factor"]).to(x.dtype)
    return weights, chosen.int(), norm if is_named else None


def _best_groups(torch: Any, scores: Any, count: int, best: int) -> Any:
    """Set scores outside the best groups to -inf; a group is rated by its two best experts."""
    grouped = scores.unflatten(-1, (count, -1))
    kept = grouped.topk(2, -1).values.sum(-1).topk(best, -1).indices
    barred = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, kept, False)
    return grouped.masked_fill(barred.unsqueeze(-1), float("-inf")).flatten(-2)


MOE_GATING_TOP_K = OpSpec(
    kernel="MoeGatingTopK",
    call="torch_npu.npu_moe_gating_top_k",
    assumes="scores at random; a bias is DeepSeek's, whose experts are in groups",
    signature="x T:float[t, experts], bias T[experts]?, -input_ids, -tid2eid"
    " -> y T[t, k]!, expert_idx INT32[t, k], out FLOAT[t, experts]?"
    " where experts <= 2048, 1 <= k <= experts, "
    "k <= experts // 2 or not (has_bias and experts == 256)",
    reference=_reference,
    build=_build,
    operations="4 * t * experts",  # about 4 for each score; the sort is not counted
    npu=NpuCall(run=_npu_run, served="torch.ops._C_ascend.moe_gating_top_k"),
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups(
        "tensor_cast.moe_gating_top_k_softmax.default",
        "tensor_cast.moe_gating_top_k_sigmoid.default",
        "tensor_cast.moe_gating_top_k.default",
        tc_input_count=1,
    ),
    launched_by={"aclnnMoeGatingTopK": arguments_at(outputs=9)},
)

# The router of DeepSeek-V4: square roots of softplus, without groups. In its first layers a table
# has the experts of each token of the vocabulary.
_IDS, _TABLE = 2, 3
_V4_SCALING = 1.5


def _hash_build(case: Case, make: TensorMaker) -> Call:
    x, *_ = case.inputs or ()
    ids, table = given(case, _IDS), given(case, _TABLE)
    vocabulary, choices = input_shape(case, _TABLE) or (0, 0)
    experts = input_shape(case, 0)[-1]
    return Call(
        like.normal(x, make),
        chosen_by_output(case),
        bias=like.normal(given(case, _BIAS), make),
        input_ids=like.integers(ids, make, 0, vocabulary) if table else None,
        tid2eid=make_choices(make, vocabulary, choices, experts, table.dtype) if table else None,
        k_group=1,
        group_count=1,
        routed_scaling_factor=_V4_SCALING,
        eps=_EPSILON,
        group_select_mode=1,
        renorm=0,
        norm_type=_SQRT_SOFTPLUS,
        norm=unwritten(make, input_shape(case, 0)) if output_shape(case, _NORM) else None,
    )


def _hash_launch(api: Any, *args: Any, norm: Any, **how: Any) -> Any:
    weights, chosen, _ = api(*args, **how, out_flag=False)
    return weights, chosen, norm


def _hash_traffic(case: Case) -> int:
    """Return the bytes: scores, bias and outputs, and the row of the table for each token."""
    table = given(case, _TABLE)
    whole = dense_bytes(case, MOE_GATING_TOP_K.optional, frozenset({_NORM}))
    if table is None:
        return whole
    rows, vocabulary = input_shape(case, 0)[0], input_shape(case, _TABLE)[0]
    return whole - table.size_bytes + rows * table.size_bytes // vocabulary


MOE_GATING_TOP_K_HASH = OpSpec(
    kernel="MoeGatingTopKHash",
    call="torch.ops._C_ascend.moe_gating_top_k_hash",
    assumes="scores at random; tokens and their experts at random, each expert once a token",
    signature="x T:float[t, experts], bias T[experts]?, input_ids integer[t]?, "
    "tid2eid integer[vocabulary, k]?"
    " -> y T[t, k]!, expert_idx INT32[t, k], out FLOAT[t, experts]?"
    " where experts <= 2048, 1 <= k <= experts, has_input_ids == has_tid2eid",
    reference=_reference,
    build=_hash_build,
    operations="4 * t * experts",
    traffic=_hash_traffic,
    npu=NpuCall(run=_hash_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups("tensor_cast.moe_gating_top_k_hash.default", tc_input_count=1),
    launched_by={"aclnnMoeGatingTopKHash": arguments_at(outputs=-3)},
)

# A router's choice by softmax. Each choice also gets the number of its row, numbered choice by
# choice.
_FINISHED = 1


def _softmax_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with no row finished: an engine passes rows that must be computed."""
    x, *_ = case.inputs or ()
    finished = given(case, _FINISHED)
    none = like.full(finished, make, 0)
    return Call(like.normal(x, make), none, chosen_by_output(case))


def _softmax_reference(torch: Any, x: Any, finished: Any, k: int) -> Any:
    best = x.float().softmax(-1).topk(k, -1)
    rows, experts = best.values[..., 0].numel(), x.shape[-1]
    chosen = best.indices
    if finished is not None:
        chosen = chosen.masked_fill(finished.unsqueeze(-1), experts)
    numbers = torch.arange(rows * k, device=x.device, dtype=torch.int32)
    numbers = numbers.view(k, rows).t().reshape(chosen.shape)
    return best.values.to(x.dtype), chosen.int(), numbers


MOE_GATING_TOP_KSOFTMAX = OpSpec(
    kernel="MoeGatingTopKSoftmax",
    call="torch_npu.npu_moe_gating_top_k_softmax",
    assumes="scores at random, no row finished",
    signature="x T:float[*t, experts], finished BOOL[*t]?"
    " -> y T[*t, k]!, expert_idx INT32[*t, k], row_idx INT32[*t, k]"
    " where t_rank == 1 or t_rank == 2, 1 <= k <= min(experts, 1024)",
    reference=_softmax_reference,
    build=_softmax_build,
    operations="4 * t * experts",
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups("tensor_cast.moe_gating_top_k_softmax.default", order=1, tc_input_count=1),
    launched_by={"aclnnMoeGatingTopKSoftmax": arguments_at(outputs=3)},
)
