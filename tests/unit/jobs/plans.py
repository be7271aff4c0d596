"""A minimal plan, for tests of its derived objects."""

from collector.model.plan import (
    Forecast,
    Limits,
    MeasureSettings,
    Plan,
    PlannedShard,
    ShardSettings,
)
from collector.model.stack import Stack

# A complete target, so that no machine is queried: only targets for NPUs can be complete.
COMPLETE_TARGET = (
    "{device: ATLAS_800_A2_376T_64G, vllm: 0.18.0, torch: 2.9.0, cann: '8.5.0', driver: 24.1.rc2, "
    "firmware: 7.7.0, torch_npu: 2.9.0}"
)


def shards_of(*seconds: float) -> tuple[PlannedShard, ...]:
    """Shards of one case, s0, s1 ..., with these forecast durations."""
    return tuple(PlannedShard(f"s{i}", 1, s, "0" * 64) for i, s in enumerate(seconds))


def plan_of(
    shards: tuple[PlannedShard, ...] = (),
    campaign: str = "c",
    number: int = 1,
    backend: str = "cpu",
) -> Plan:
    """A plan of these shards; every other field is arbitrary."""
    return Plan(
        campaign=campaign,
        number=number,
        head_commit=0,
        inputs_hash="h",
        round="",
        stack=Stack(device="D", torch="2.13.0"),
        backend=backend,
        devices=2,
        operators=None,
        update="all",
        measure=MeasureSettings(),
        shard_settings=ShardSettings(),
        limits=Limits(),
        sources=(),
        op_mapping=None,
        forecast=Forecast(1, 0, 0, 1.0, 1.0, 1.0),
        shards=shards,
    )
