"""A plan: what one round of a campaign measures. It is immutable once written.

Its JSON is canonical: the same inputs at the same head give the same bytes, and the hash of the
bytes is the plan's hash.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from collector.codec.canonical import decode_object, readable_json, sha256_hex
from collector.model.record import CaseRecord, number_in_cell, read_rows, write_rows
from collector.model.stack import Stack

WARM_UPS = 3  # launches of a case before its timed launches
_COMPILING = 1  # the first launch of a case, if it took half of the case's budget
_MARKS = 2
# Launches of an NPU's session. Huawei's profiling guide recommends at most five minutes of
# collection; msprof writes the timeline of all launches before their op_summary.
MOST_LAUNCHES = 100_000
# If another process used the device: the largest share of a session's repeat time that is spent on
# more repeats, and the share of a shard's forecast that is measured again in a later session.
MORE_REPEATS_SHARE = 0.5
AGAIN_SHARE = 0.25
# Canaries: reference cases that a session replays at its start, in its middle and at its end, each
# with this number of repeats, if its forecast is at least this number of seconds.
CANARIES_FROM_S = 60.0
CANARY_PLACES = ("start", "middle", "end")
CANARY_REPEATS = 8


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """How each case is measured. `repeat_count` fixes the number of repeats. Without it, a pilot
    launch chooses between `min_repeats` and `max_repeats` to spend about `budget_s` for each case.
    With a `precision`, a share of the mean, repeats end as soon as the mean is known with that
    precision."""

    budget_s: float = 1.0
    min_repeats: int = 3
    max_repeats: int = 100
    repeat_count: int | None = None
    cache: str = "warm"  # warm | cold
    aic_metrics: tuple[str, ...] = ("PipeUtilization",)
    precision: float | None = None

    @property
    def pilots(self) -> int:
        """Return the number of launches that determine how many repeats the budget allows."""
        return 1 if self.repeat_count is None else 0

    @property
    def most_repeats(self) -> int:
        return self.repeat_count or self.max_repeats

    def before_repeats(self, launch_s: float) -> tuple[int, int]:
        """Return the numbers of warm-ups and pilots of a launch that takes `launch_s`. One that
        takes half of the budget is its own pilot, and the only warm-up."""
        return (1, 0) if launch_s >= self.budget_s / 2 else (WARM_UPS, self.pilots)

    def most_launches(self, neighbours: int = 0) -> int:
        """Return the maximum number of launches of a case, with its marks. `neighbours` launches
        run before each launch of the case, behind one more mark."""
        launches = _COMPILING + WARM_UPS + self.pilots + self.most_repeats
        return launches + _MARKS + ((neighbours + 1) * launches if neighbours else 0)

    def repeats_of(self, launch_s: float) -> int:
        """Return the number of repeats of a launch that takes `launch_s`: as many as fill the
        budget, within the bounds."""
        if self.repeat_count is not None:
            return self.repeat_count
        affordable = int(self.budget_s / launch_s) if launch_s > 0 else self.max_repeats
        return min(max(affordable, self.min_repeats), self.max_repeats)

    def as_json(self) -> dict[str, object]:
        """Return the settings by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The intended duration of a shard and of a profiler session inside it, by forecast."""

    target_s: float = 720.0
    session_s: float = 240.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each case: its time, and the memory of the session in GiB."""

    case_s: float = 60.0
    memory_gb: float = 56.0


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """One table of cases that the plan was made from; its key is its hash. The source's device time
    is `compute_us`, that of all its cases, and `communication_us`, which has no cases."""

    name: str
    sha256: str
    rows: int
    same_stack: bool  # whether the profile was taken on the plan's stack
    communication_us: float = 0.0
    compute_us: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedOperators:
    """A user's file of operators, which is stored under its hash with the campaign."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class UpgradeFrom:
    """The version directory of an older stack whose durations a campaign reuses if a sample of a
    kernel's cases shows them equal within the `margin`, a share of the duration."""

    version_path: str
    margin: float


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard and its forecast. Its cases are stored under the shard's key, in order, in a table
    with this hash. A shard of several `ranks` is a gang: all ranks run at once, or none. A shard
    whose cases are measured a second time names the shards of the first measurements in `again_of`.
    A shard of cases that a suspect session measured names the device of that session
    (`device_or_node_name`), and is `not_on` it if another device is available."""

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
        """Return the node of `not_on`; empty if any node is allowed."""
        return self.not_on.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast that is printed before anything starts.

    `floor_s` is the ideal wall time on the plan's devices. `repeats` of the cases are also in a
    second shard, which shows how far sessions differ. `narrowed` cases have a result and are
    measured again for their intervals, `doubtful` ones because the canaries of their session
    deviate. Of surfaces that are learnt from some of their cases, `left_out` cases are not planned,
    and `unsure` of those are not known to the tolerance. Of kernels that an older stack measured,
    `left_out` cases are not planned, and `unsure` of those wait for a sample of `learning` cases;
    the others are reused. Another round follows if `learning` cases are requested; it is 0 in the
    last round that is tried. `compute_us` is the time that the cases of the campaign's operators
    took in the sources; a device of the plan can measure `measurable_us` of it; `unknown_us` is the
    time of rows whose inputs no profiler recorded."""

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


@dataclass(frozen=True)  # without slots: its sha256 is cached in the instance
class Plan:
    campaign: str
    number: int
    head_commit: int
    inputs_hash: str  # of sources, settings and stack: decides whether to continue a plan
    round: str  # "" or a token that makes the shards of a repeated round new ones
    stack: Stack
    backend: str
    devices: int
    operators: tuple[str, ...] | None  # the kernel types of the plan; None for all
    update: str
    measure: MeasureSettings
    shard_settings: ShardSettings
    limits: Limits
    sources: tuple[PlannedSource, ...]
    op_mapping: str | None  # the text of op_mapping.yaml, copied unchanged
    forecast: Forecast
    shards: tuple[PlannedShard, ...]
    upgrade_from: UpgradeFrom | None = None
    operator_files: tuple[PlannedOperators, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the plan's bytes: of those that it was read from, or else of those
        that are to be written. The latter take a second for a large plan."""
        return sha256_hex(plan_to_json(self))

    @property
    def plan_hash(self) -> str:
        """Return the first digits of `sha256`, which name the content."""
        return self.sha256[:16]

    @cached_property
    def gangs(self) -> frozenset[str]:
        """Return the shards that need several ranks at once."""
        return frozenset(shard.shard_id for shard in self.shards if shard.is_gang)

    @cached_property
    def kept_from(self) -> Mapping[str, str]:
        """Return the node to avoid of each shard that should run on another node."""
        return {s.shard_id: s.not_on_node for s in self.shards if s.not_on_node}

    @property
    def may_have_canaries(self) -> bool:
        """Return whether any of its sessions may be long enough to compare it with others."""
        return any(s.predicted_s >= CANARIES_FROM_S and not s.is_gang for s in self.shards)

    @property
    def repeats(self) -> tuple[PlannedShard, ...]:
        """Return the shards whose cases are also in another shard: the last ones, with as many
        cases as the forecast measures a second time."""
        left, count = self.forecast.repeats, 0
        while left > 0 and count < len(self.shards):
            count += 1
            left -= self.shards[-count].cases
        return self.shards[len(self.shards) - count :] if left == 0 else ()

    def beyond(self, known: Container[str]) -> tuple[PlannedShard, ...]:
        """Return the shards that are not in `known`, in order: beyond the committed shards, those
        left to measure; beyond those of a database, those left to merge."""
        return tuple(shard for shard in self.shards if shard.shard_id not in known)


def devices_for(ranks: int, backend: str) -> int:
    """Return the number of devices of the ranks. Ranks of a CPU share its cores."""
    return 1 if backend == "cpu" else ranks


def device_or_node_name(node: str, serial: str) -> str:
    """Return the name of a device of a node; without a serial number it is the node's only
    device."""
    return f"{node}/{serial}"


def plan_to_json(plan: Plan) -> bytes:
    value = _by_name(plan)
    value["stack"] = plan.stack.as_json()
    value["measure"] = plan.measure.as_json()
    for name in ("shard_settings", "limits", "forecast"):
        value[name] = _by_name(value[name])
    if plan.upgrade_from is not None:
        value["upgrade_from"] = _by_name(plan.upgrade_from)
    for name in ("sources", "operator_files"):
        value[name] = list(map(_by_name, value[name]))
    value["shards"] = list(map(_by_name, plan.shards))  # many thousands in a large plan
    return readable_json(value)


def _by_name(thing: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without copies of their values as `asdict`
    makes."""
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def plan_from_json(data: bytes, *, key: str = "plan") -> Plan:
    """Return the plan of canonical bytes, the inverse of `plan_to_json`. Raises BadInput for other
    data."""
    plan = decode_object(Plan, data, what="a plan", key=key)
    # Of the stored bytes: an earlier opmeter wrote fewer fields than `plan_to_json` does.
    vars(plan)["sha256"] = sha256_hex(data)
    return plan


# A shard: the cases that one worker measures together, in order, each with its forecast.
#
# Its table is a table of cases with one more column, so that a worker can set the size of its
# sessions and its limits without the planner.

_FORECAST = "Forecast(s)"


@dataclass(frozen=True, slots=True)
class ShardCase:
    """A case of a shard. `predicted_s` is the wall time that the planner expects for the whole
    case."""

    record: CaseRecord
    predicted_s: float


def write_shard(cases: Iterable[ShardCase]) -> bytes:
    """Return the table's bytes; equal cases in equal order give equal bytes."""
    rows = ((case.record, [f"{case.predicted_s:.6g}"]) for case in cases)
    return write_rows(rows, (_FORECAST,), ("0",))


def read_shard(data: bytes, *, path: str = "shard") -> list[ShardCase]:
    """Return the cases of a table. Raises BadInput, with the line, for other data."""
    return [
        ShardCase(row.record, number_in_cell(_FORECAST, row.further[0], path=path, line=row.line))
        for row in read_rows(data, (_FORECAST,), path=path)
    ]
