"""A plan: what one round of a campaign will measure. Immutable once it is written.

Its JSON is canonical: the same inputs at the same head give the same bytes, and the hash of the
bytes is the plan's hash.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from collector.codec.canonical import decode_object, readable_json, sha256_hex
from collector.model.record import CaseRecord, number_of, read_rows, write_rows
from collector.model.stack import Stack

WARM_UPS = 3  # launches of a case before any that counts
# Where something else had the device: how much of what a session spends on repeats it spends on
# more of them, at most, and how much of a shard's forecast is measured again in a later session.
MORE_REPEATS_SHARE = 0.5
AGAIN_SHARE = 0.25
# Canaries: reference cases that a session of at least so many seconds, by forecast, replays at its
# start, in its middle and at its end, each with so many repeats.
CANARIES_FROM_S = 60.0
CANARY_PLACES = ("start", "middle", "end")
CANARY_REPEATS = 8


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """How each case is measured. `repeat_count` fixes the repeats; without it a pilot chooses
    between `min_repeats` and `max_repeats` to spend about `budget_s` a case. With a `precision`, a
    share of the mean, repeats end as soon as their mean is known so well."""

    budget_s: float = 1.0
    min_repeats: int = 3
    max_repeats: int = 100
    repeat_count: int | None = None
    cache: str = "warm"  # warm | cold
    aic_metrics: tuple[str, ...] = ("PipeUtilization",)
    precision: float | None = None

    @property
    def pilots(self) -> int:
        """The launches that tell how many repeats the budget pays for."""
        return 1 if self.repeat_count is None else 0

    @property
    def most_repeats(self) -> int:
        return self.repeat_count or self.max_repeats

    def repeats_of(self, launch_s: float) -> int:
        """The repeats of a launch that takes so long: what fills the budget, within bounds."""
        if self.repeat_count is not None:
            return self.repeat_count
        affordable = int(self.budget_s / launch_s) if launch_s > 0 else self.max_repeats
        return min(max(affordable, self.min_repeats), self.max_repeats)

    def as_json(self) -> dict[str, object]:
        """The settings by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How long a shard and a profiler session inside it should last, by forecast."""

    target_s: float = 720.0
    session_s: float = 240.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What no case may exceed: its time, and the memory of the session in GiB."""

    case_s: float = 60.0
    memory_gb: float = 56.0


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """One table of cases the plan was made from: its hash names its key. `communication_us` is what
    the source spent in communication, which makes no cases."""

    name: str
    sha256: str
    rows: int
    same_stack: bool  # whether the profile was taken on the plan's own stack
    communication_us: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard and its forecast; its cases lie under the shard's key, in order, in a table of this
    hash. One of several `ranks` is a gang: all of them run at once, or none. One whose cases are
    measured a second time says in which shards they stand for the first, `again_of`; one of cases
    that a doubtful session measured says where that was (`place_name`), and is `not_on` there if
    another place will do."""

    shard_id: str
    cases: int
    predicted_s: float
    sha256: str
    ranks: int = 1
    again_of: tuple[str, ...] = ()
    not_on: str = ""

    @property
    def is_gang(self) -> bool:
        return self.ranks > 1

    @property
    def not_on_node(self) -> str:
        """The node of `not_on`; empty where any will do."""
        return self.not_on.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Printed before anything starts. `floor_s` is the ideal wall time on the plan's devices;
    `repeats` of the cases stand in a second shard, which shows how far sessions differ; `narrowed`
    ones are answered, and measured again for their intervals, `doubtful` ones since the canaries of
    their session are odd. Of surfaces that are learnt from some
    of their cases, `left_out` are not planned, `unsure` of them not known to the tolerance; another
    round follows where `learning` cases are asked for, which is 0 in the last that is tried. Of the
    time that the sources' cases took, `compute_us`, a device of the plan can measure
    `measurable_us`; `unknown_us` is of rows whose inputs no profiler told."""

    cases: int
    unsupported: int
    answered: int
    device_s: float
    wall_s: float
    floor_s: float
    repeats: int = 0
    narrowed: int = 0
    doubtful: int = 0
    left_out: int = 0
    unsure: int = 0
    learning: int = 0
    compute_us: float = 0.0
    measurable_us: float = 0.0
    unknown_us: float = 0.0


@dataclass(frozen=True)  # without slots: its sha256 is kept beside it
class Plan:
    campaign: str
    number: int
    head_commit: int
    inputs_hash: str  # of sources, settings and stack: what decides whether to continue a plan
    round: str  # what makes a repeated round's shards new ones: "" or a token
    stack: Stack
    backend: str
    devices: int
    operators: tuple[str, ...] | None  # the kernel types it is about; None for all
    update: str
    measure: MeasureSettings
    shard_settings: ShardSettings
    limits: Limits
    sources: tuple[PlannedSource, ...]
    op_mapping: str | None  # the text of op_mapping.yaml, copied unchanged
    forecast: Forecast
    shards: tuple[PlannedShard, ...]

    @cached_property
    def sha256(self) -> str:
        """Of the plan's bytes; of a large plan it takes a second."""
        return sha256_hex(plan_to_json(self))

    @property
    def plan_hash(self) -> str:
        """The name of its content: the first digits of `sha256`."""
        return self.sha256[:16]

    @cached_property
    def gangs(self) -> frozenset[str]:
        """The shards that need several ranks at once."""
        return frozenset(shard.shard_id for shard in self.shards if shard.is_gang)

    @cached_property
    def kept_from(self) -> Mapping[str, str]:
        """The shards that should run on another node than one, and which that is."""
        return {s.shard_id: s.not_on_node for s in self.shards if s.not_on_node}

    @property
    def may_have_canaries(self) -> bool:
        """Whether any of its sessions may be long enough to be held against others."""
        return any(s.predicted_s >= CANARIES_FROM_S and not s.is_gang for s in self.shards)

    @property
    def repeats(self) -> tuple[PlannedShard, ...]:
        """The shards whose cases stand in another one too: the last, as many as the forecast says
        are measured a second time."""
        left, count = self.forecast.repeats, 0
        while left > 0 and count < len(self.shards):
            count += 1
            left -= self.shards[-count].cases
        return self.shards[len(self.shards) - count :] if left == 0 else ()

    def beyond(self, known: Container[str]) -> tuple[PlannedShard, ...]:
        """The shards that are not among those, in order: what is left to measure beyond the
        committed ones, and to merge beyond those of a database."""
        return tuple(shard for shard in self.shards if shard.shard_id not in known)


def devices_for(ranks: int, backend: str) -> int:
    """How many devices so many ranks take: those of a cpu share its cores."""
    return 1 if backend == "cpu" else ranks


def place_name(node: str, serial: str) -> str:
    """A device of a node in a word; without a serial number the node's only one."""
    return f"{node}/{serial}"


def plan_to_json(plan: Plan) -> bytes:
    value = _by_name(plan)
    value["stack"] = plan.stack.as_json()
    value["measure"] = plan.measure.as_json()
    for name in ("shard_settings", "limits", "forecast"):
        value[name] = _by_name(value[name])
    value["sources"] = list(map(_by_name, plan.sources))
    value["shards"] = list(map(_by_name, plan.shards))  # of a large plan many thousands
    return readable_json(value)


def _by_name(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass, without the copies that `asdict` makes of what is in them."""
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def plan_from_json(data: bytes, *, key: str = "plan") -> Plan:
    """The plan of canonical bytes; `plan_to_json` gives them back. BadInput for anything else."""
    return decode_object(Plan, data, what="a plan", key=key)


# A shard: the cases one worker measures in one go, in order, each with its forecast.
#
# Its table is a table of cases with one more column, so that a worker can size its sessions and
# its limits without the planner.

_FORECAST = "Forecast(s)"


@dataclass(frozen=True, slots=True)
class ShardCase:
    """`predicted_s` is the wall time the planner expects the whole case to take."""

    record: CaseRecord
    predicted_s: float


def write_shard(cases: Iterable[ShardCase]) -> bytes:
    """The table's bytes; equal cases in equal order give equal bytes."""
    rows = ((case.record, [f"{case.predicted_s:.6g}"]) for case in cases)
    return write_rows(rows, (_FORECAST,), ("0",))


def read_shard(data: bytes, *, path: str = "shard") -> list[ShardCase]:
    """The cases of a table. Raises BadInput, with the line, for anything else."""
    return [
        ShardCase(row.record, number_of(_FORECAST, row.further[0], path=path, line=row.line))
        for row in read_rows(data, (_FORECAST,), path=path)
    ]
