"""The keys that matter most to each query: CANN's own kernel."""

from collector.ops.catalog.attention._indexer import (
    CONSTRAINTS,
    OPTIONAL_OUTPUTS,
    SLOTS,
    build,
    columns,
    flops,
    launch,
    reference,
    traffic,
    untold,
)
from collector.ops.spec import NpuCall, OpSpec

OP = OpSpec(
    kernel="LightningIndexer",
    call="torch_npu.npu_lightning_indexer",
    assumes=(
        "queries, and keys that lie in no pages, in equal parts; of pages those that Runtime "
        "columns name, all over the pool; scores at random"
    ),
    slots=SLOTS,
    optional_outputs=OPTIONAL_OUTPUTS,
    reference=reference,
    build=build,
    flops=flops,
    traffic=traffic,
    npu=NpuCall(run=launch, served="torch.ops._C_ascend.npu_lightning_indexer"),
    runtime=columns,
    untold=untold,
    constraints=CONSTRAINTS,
)
