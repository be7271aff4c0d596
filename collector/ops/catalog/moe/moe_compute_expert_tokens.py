"""Where each expert's rows end, in rows sorted by expert: a binary search for every expert."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.moe._routing import output_size
from collector.ops.parts.moving import no_flops
from collector.ops.parts.serving import dtypes, nothing_empty
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_MOST_EXPERTS = 2048
_MOST_ROWS = 1 << 24  # exclusive


def _build(case: Case, make: TensorMaker) -> Call:
    (rows,) = case.inputs or ()
    experts = output_size(case, 0)
    return Call((make.integers(rows.shape or (), rows.dtype, 0, experts).sort().values, experts))


def _reference(torch: Any, rows: Any, experts: int) -> Any:
    numbers = torch.arange(experts, dtype=rows.dtype, device=rows.device)
    return torch.searchsorted(rows, numbers, right=True, out_int32=True)


def _fits(case: Case) -> bool:
    rows = input_shape(case, 0)
    return len(rows) == 1 and rows[0] < _MOST_ROWS and 0 < output_size(case, 0) <= _MOST_EXPERTS


OP = OpSpec(
    kernel="MoeComputeExpertTokens",
    call="torch_npu.npu_moe_compute_expert_tokens",
    assumes="each expert as likely for a row",
    slots=("sorted_experts",),
    reference=_reference,
    build=_build,
    flops=no_flops,
    constraints=(
        Constraint("experts of sorted rows (R) and an output (at most 2048 experts)", _fits),
        nothing_empty(),
        *dtypes({0: "INT32"}, {0: "INT32"}),
    ),
)
