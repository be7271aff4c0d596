"""The keys that matter most to each query: vLLM-Ascend's own kernel, by which 0.18 serves on A2 and
A3 (`vllm_ascend/attention/sfa_v1.py`). 0.23 gives it the name of CANN's, in its own library.
"""

from typing import Any

from collector.ops.catalog.attention._indexer import (
    CONSTRAINTS,
    QUERY,
    SLOTS,
    WEIGHTS,
    build,
    columns,
    flops,
    launch,
    reference,
    traffic,
    untold,
)
from collector.ops.dtypes import one_dtype
from collector.ops.spec import Need, NpuCall, OpSpec


def _reference(torch: Any, *args: Any, **kwargs: Any) -> Any:
    """The indices: there are no values."""
    return reference(torch, *args, **kwargs)[0]


def _launch(api: Any, *args: Any, **kwargs: Any) -> Any:
    return launch(api, *args, **kwargs)[0]


OP = OpSpec(
    kernel="LightningIndexerVllm",
    call="torch.ops._C_ascend.npu_lightning_indexer",
    assumes=(
        "queries, and keys that lie in no pages, in equal parts; of pages those that Runtime "
        "columns name, all over the pool; scores at random"
    ),
    slots=SLOTS,
    reference=_reference,
    build=build,
    flops=flops,
    traffic=traffic,
    npu=NpuCall(run=_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    runtime=columns,
    untold=untold,
    constraints=(*CONSTRAINTS, one_dtype((QUERY, WEIGHTS), ())),
)
