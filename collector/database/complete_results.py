"""Results that exist before their plan does, as a plan with shards: imported durations, and
sessions of a host.

The campaign is named by the content, so that equal results are stored once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collector import __version__
from collector.codec.canonical import sha256_hex
from collector.model.measurement import Measurement, Provenance
from collector.model.plan import (
    Forecast,
    Limits,
    MeasureSettings,
    Plan,
    PlannedShard,
    ShardCase,
    ShardSettings,
    write_shard,
)
from collector.model.record import CaseRecord
from collector.model.stack import Runtime, Stack

_CASES_OF_SHARD = 4096


class CompleteResults(Protocol):
    """Results of one stack: each record is a case, and has a measurement at its position."""

    @property
    def stack(self) -> Stack: ...

    @property
    def backend(self) -> str: ...

    @property
    def campaign(self) -> str: ...

    @property
    def records(self) -> Sequence[CaseRecord]: ...

    def measurement(self, at: int, provenance: Provenance) -> Measurement: ...


@dataclass(frozen=True, slots=True)
class CompleteShard:
    """A shard of such a plan: its table, and the positions of its cases."""

    shard_id: str
    table: bytes
    positions: range


def complete_shards(records: Sequence[CaseRecord]) -> tuple[CompleteShard, ...]:
    """Return the shards of records, in their order."""
    found = []
    for begin in range(0, len(records), _CASES_OF_SHARD):
        positions = range(begin, min(begin + _CASES_OF_SHARD, len(records)))
        table = write_shard(ShardCase(records[at], 0.0) for at in positions)
        found.append(CompleteShard(sha256_hex(table)[:16], table, positions))
    return tuple(found)


def complete_plan(
    results: CompleteResults, shards: Sequence[CompleteShard], head_commit: int
) -> Plan:
    """Return the plan of results. Of two with a case, that of the later `head_commit` is shown."""
    return Plan(
        campaign=results.campaign,
        number=1,
        head_commit=head_commit,
        inputs_hash=results.campaign.rpartition("-")[2],
        round="",
        stack=results.stack,
        backend=results.backend,
        devices=1,
        operators=None,
        update="all",
        measure=MeasureSettings(),
        shard_settings=ShardSettings(),
        limits=Limits(),
        sources=(),
        op_mapping=None,
        forecast=Forecast(len(results.records), 0, 0, device_s=0.0, wall_s=0.0, floor_s=0.0),
        shards=tuple(
            PlannedShard(one.shard_id, len(one.positions), 0.0, sha256_hex(one.table))
            for one in shards
        ),
    )


def measurements_of(
    results: CompleteResults, shard: CompleteShard, plan: Plan, attempt: str, node: str
) -> Iterable[Measurement]:
    """Yield the measurements of a shard."""
    provenance = Provenance(
        campaign=plan.campaign,
        plan=plan.number,
        plan_hash=plan.plan_hash,
        head_commit=plan.head_commit,
        shard=shard.shard_id,
        attempt=attempt,
        session=1,
        stack_id=plan.stack.stack_id,
        node=node,
        device_serial=None,
        rank=0,
        runtime=Runtime.REAL,
        image_digest=None,
        collector_version=__version__,
        raw_key=None,
    )
    return (results.measurement(at, provenance) for at in shard.positions)
