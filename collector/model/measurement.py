"""A measurement: the timing of one case with its certificate, or the reason there is none.

A measurement is made each time a case is tried, and it is never changed or deleted. This module is
its only declaration: `row.py` derives from it the columns of parts and of the database's tables.
A field with a default may be added; what was written before it is read with that default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import isfinite
from types import MappingProxyType

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.model.stack import EVENTS, HOST, Runtime

# What the device's cache contains before each repeat: the data of the repeat before (warm), other
# data (cold), or the data of the launches that ran before the case in a profile (context). The
# first two are of the case alone.
ISOLATED = ("warm", "cold")
CONTEXT = "context"
CACHES = (*ISOLATED, CONTEXT)
PROFILER = "profiler"  # the source of all durations but those of the backends below
CLOCK = "clock"  # of the host: the source of the duration of a whole pass on a CPU
IMPORTED = "imported"  # the source of a duration that another tool measured
ENOUGH_CLEAN = 3  # undisturbed repeats; with fewer, more are launched
_FAR = 1e15  # above any time or count of a session, and small enough to be squared
_ROUNDING = 1e-9  # the mean of equal numbers may differ in its last digit


def doc(description: str, **more: object) -> Mapping[str, object]:
    """Metadata of a field: its description for users and, where it has one, its `unit`. `column`
    is the name of its column where that differs from the field's, `prefix` that of the columns of a
    nested dataclass, `words` are the allowed values of a text."""
    return MappingProxyType({"description": description, **more})


class Proof(StrEnum):
    """Whether records show that the measured launches are the call that the case names."""

    NONE = ""  # the profiler of this device does not record the inputs of a launch
    PROVED = "proved"  # kernel type and every tensor that the case names
    UNVERIFIED = "unverified"  # kernel type and count; the profiler recorded too few tensors


class Library(StrEnum):
    """The library of the kernel that ran. A case may request CANN's or vLLM-Ascend's."""

    NONE = ""  # the reference in plain torch ran
    CANN = "cann"
    VLLM_ASCEND = "vllm-ascend"  # its custom OPP, or its library of kernels
    ATB = "atb"
    TRITON = "triton"  # kernels of vLLM-Ascend


class Outcome(StrEnum):
    """How the measurement of a case ended. Every outcome but OK has a reason."""

    OK = "ok"
    GATED = "gated"  # measured, and a gate refused the number
    IMPLAUSIBLE = "implausible"  # no device can take so long, or so short, for the case
    UNSUPPORTED = "unsupported"  # no operator is declared for it, or its inputs are unknown
    REJECTED = "rejected"  # the declaration refuses these shapes or dtypes
    FAILED = "failed"  # the operator raised an error
    OOM = "oom"  # it did not fit into memory
    CRASHED = "crashed"  # the session died in it
    HUNG = "hung"  # it exceeded its time limit
    SUBSTITUTED = "substituted"  # another kernel ran, or other tensors, or several launches a call
    PROFILER_LOST = "profiler_lost"  # the numbers of launches and of records differ


# Of unsupported cases: no operator measures them, whatever the device and however often it tries.
UNMEASURABLE = (Outcome.UNSUPPORTED, Outcome.REJECTED)


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of the accepted repeats, from the profiler alone or from events alone; of calls
    of a host, its processor time. Raises BadInput for numbers that no durations have: not finite,
    zero or negative, or percentiles that are not in order."""

    mean_us: float = field(metadata=doc("mean duration", unit="us"))
    ci_low_us: float = field(
        metadata=doc("lower end of the 95 % interval of the mean within this session", unit="us")
    )
    ci_high_us: float = field(metadata=doc("upper end of that interval", unit="us"))
    median_us: float = field(metadata=doc("median duration", unit="us"))
    min_us: float = field(metadata=doc("shortest duration", unit="us"))
    p10_us: float = field(metadata=doc("10th percentile", unit="us"))
    p90_us: float = field(metadata=doc("90th percentile", unit="us"))
    spread: float = field(
        metadata=doc("1.4826 * median absolute deviation / median, from 0 to 1.4826")
    )
    outlier_share: float = field(
        default=0.0,
        metadata=doc("share of the undisturbed launches left out as outliers; empty for none"),
    )
    untrimmed_us: float = field(
        default=0.0, metadata=doc("mean duration with the outliers; empty for none", unit="us")
    )

    def __post_init__(self) -> None:
        if fault := _timing_fault(self):
            raise BadInput(f"invalid timing: {fault}")


@dataclass(frozen=True, slots=True)
class Companion:
    """Another kernel that ran in the case's window: recorded, never stored as a measurement."""

    kernel_type: str
    count: int
    mean_us: float


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What the device reported about itself; None for what it does not report."""

    clock_mhz: float | None = field(default=None, metadata=doc("clock", unit="MHz"))
    temperature_c: float | None = field(default=None, metadata=doc("temperature", unit="C"))


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What else used the device while the repeats of a case ran.

    Of `watched` repeats, `clean` were undisturbed; they alone make the timing unless there are
    none. On a cpu, `waited_share` is the time that a thread waited for a core, `stolen_share` the
    time that the host of a virtual machine took, both over the time of the repeats; `switches`
    counts how often a thread had to leave its core. `pressure_share` is the share of the time in
    which some task of the machine waited for a core, and `worked_share` the share of the time of
    all threads of the team in which cores worked for the process.

    On a gpu or npu, fields are None where the device does not report them; if it reports nothing
    that can disturb, no repeat is watched. Of the readings around the repeats, in
    `throttled_share` a slowdown held the clock down, in `capped_share` the power limit.
    `clock_share` is the clock over the rated clock or the clock before, `others` the number of
    other processes on the device, `power_w` the highest power. In `launch_gap_share` of the time
    from the first launch to the end of the last, nothing ran."""

    watched: int
    clean: int
    waited_share: float = 0.0
    stolen_share: float = 0.0
    switches: int = 0
    throttled_share: float | None = None
    capped_share: float | None = None
    clock_share: float | None = None
    others: int | None = None
    power_w: float | None = None
    launch_gap_share: float | None = None
    pressure_share: float | None = None
    worked_share: float | None = None

    @property
    def is_clean(self) -> bool:
        """Whether enough repeats were undisturbed."""
        return self.clean >= min(ENOUGH_CLEAN, self.watched)

    @property
    def is_total(self) -> bool:
        """Whether every repeat was disturbed."""
        return not self.clean and self.watched > 0


@dataclass(frozen=True, slots=True)
class CanaryReading:
    """The timing of a reference case at one position of a session: the mean of the accepted
    repeats, and their relative standard deviation. `at_s` counts from the first case."""

    case: str  # as `Case.describe` returns it
    place: str  # one of CANARY_PLACES of `collector.model.plan`
    at_s: float
    mean_us: float
    deviation: float
    repeats: int

    def __post_init__(self) -> None:
        if not (0 <= self.at_s < _FAR and 1 / _FAR < self.mean_us < _FAR):
            raise BadInput(f"invalid canary reading: {self.mean_us} us at {self.at_s} s")
        if not (0 <= self.deviation < _FAR and 2 <= self.repeats < _FAR):
            raise BadInput(
                f"invalid canary reading: {self.repeats} repeats with a relative standard "
                f"deviation of {self.deviation}"
            )


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a measurement comes from: enough to find the raw record and to rank it."""

    campaign: str = field(metadata=doc("name of the campaign"))
    plan: int = field(metadata=doc("number of its plan"))
    plan_hash: str = field(metadata=doc("hash of the plan"))
    head_commit: int = field(
        metadata=doc("newest commit when the plan was made; 0 for an empty database")
    )
    shard: str = field(metadata=doc("shard of the plan"))
    attempt: str = field(metadata=doc("attempt at the shard"))
    session: int = field(metadata=doc("session of the attempt"))
    stack_id: str = field(metadata=doc("hash of the stack"))
    node: str = field(metadata=doc("node or host name"))
    device_serial: str | None = field(metadata=doc("serial number of the device"))
    rank: int = field(metadata=doc("rank within a gang; 0 otherwise"))
    runtime: Runtime = field(metadata=doc("kind of the device: real or recording"))
    image_digest: str | None = field(metadata=doc("digest of the container image"))
    collector_version: str = field(metadata=doc("version of opmeter"))
    raw_key: str | None = field(metadata=doc("store key of the profiler's own records"))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One case, tried once."""

    case_id: str = field(metadata=doc("id of the case", column="case"))
    kernel_type: str = field(metadata=doc("kernel type"))
    outcome: Outcome = field(metadata=doc("how the measurement ended"))
    reason: str = field(metadata=doc("why, for every outcome but ok"))
    provenance: Provenance
    n_expected: int = field(default=0, metadata=doc("launches issued for timing"))
    n_observed: int = field(default=0, metadata=doc("launches that the profiler recorded"))
    n_accepted: int = field(default=0, metadata=doc("launches that make the timing, not outliers"))
    timing: Timing | None = None
    cache: str = field(
        default="warm", metadata=doc("content of the cache before each repeat", words=CACHES)
    )
    compute_dtype: str | None = field(default=None, metadata=doc("dtype of the computation"))
    core: str | None = field(default=None, metadata=doc("kind of core that the kernel ran on"))
    op_state: str = field(default="", metadata=doc("OP State that the profiler recorded"))
    asked: str = field(
        default="",
        metadata=doc("id of the requested case, where another kernel or other tensors ran"),
    )
    companions: tuple[Companion, ...] = field(
        default=(), metadata=doc("other kernels that ran in the case's window")
    )
    counters: tuple[tuple[str, float], ...] = field(
        default=(), metadata=doc("mean of each hardware counter")
    )
    warnings: tuple[str, ...] = field(default=(), metadata=doc("warnings"))
    opened: DeviceState = field(
        default=DeviceState(), metadata=doc("before the first repeat", prefix="opened_")
    )
    closed: DeviceState = field(
        default=DeviceState(), metadata=doc("after the last repeat", prefix="closed_")
    )
    started_at: str = field(
        default="", metadata=doc("begin of the case in its session, UTC; of a gang, of the session")
    )
    ended_at: str = field(
        default="", metadata=doc("end of the case, UTC; of a gang, of the session")
    )
    disturbance: Disturbance | None = field(
        default=None, metadata=doc("what else used the device; empty where nothing reports it")
    )
    canaries: tuple[CanaryReading, ...] = field(
        default=(), metadata=doc("readings of the session's reference cases")
    )
    identity: Proof = field(
        default=Proof.NONE, metadata=doc("proof that the launches are the requested call")
    )
    recorded: tuple[tuple[str, str], ...] = field(
        default=(), metadata=doc("tensor cells as recorded, where they differ from the request")
    )
    library: Library = field(default=Library.NONE, metadata=doc("library of the kernel that ran"))
    assumes: str = field(
        default="", metadata=doc("assumed input values on which the duration may depend")
    )
    context: str = field(
        default="", metadata=doc("launches that ran before each repeat, where some did")
    )
    profiler_floor_us: float = field(
        default=0.0,
        metadata=doc("shortest duration that the session's profiler reports", unit="us"),
    )
    timed_by: str = field(
        default=PROFILER,
        metadata=doc("what timed the launches", words=(PROFILER, CLOCK, EVENTS, IMPORTED, HOST)),
    )
    empty_launch_us: float = field(
        default=0.0,
        metadata=doc("median of launches without work, subtracted from each event", unit="us"),
    )
    source: str = field(
        default="",
        metadata=doc("file and line of the tree that an imported duration is from"),
    )

    @property
    def measurement_id(self) -> str:
        p = self.provenance
        return measurement_id_of(p.shard, p.attempt, p.session, self.case_id, p.runtime, self.asked)

    @property
    def is_filed(self) -> bool:
        """Whether this case was not requested: it is no result for a case of its shard."""
        return bool(self.asked)

    @property
    def is_good(self) -> bool:
        return self.outcome is Outcome.OK and self.timing is not None

    @property
    def is_disturbed(self) -> bool:
        """Whether it has a timing, and every repeat was disturbed."""
        return self.is_good and self.disturbance is not None and self.disturbance.is_total

    @property
    def rank_key(self) -> tuple[int, int, str, str]:
        """Of two measurements of one case, the one with the greater key is shown."""
        p = self.provenance
        return (p.head_commit, p.plan, p.plan_hash, self.measurement_id)


def measurement_id_of(
    shard: str, attempt: str, session: int, case_id: str, runtime: str, requested: str
) -> str:
    """Return the id of one try of a case. A session may try a case because it was requested, and
    also run it in place of another: these are two tries."""
    origin = [shard, attempt, session, case_id, runtime]
    return short_hash([*origin, requested] if requested else origin, 24)


def _timing_fault(timing: Timing) -> str:
    """Return why the numbers of a timing are impossible, or an empty text."""
    for name in TIMING_FIELDS:
        if not isfinite(value := getattr(timing, name)):
            return f"{name}: expected a finite number, got {value}"
    ordered = (timing.min_us, timing.p10_us, timing.median_us, timing.p90_us)
    if timing.min_us <= 0 or timing.spread < 0:
        return (
            f"expected min_us above 0 and spread of at least 0, got {timing.min_us} and "
            f"{timing.spread}"
        )
    if list(ordered) != sorted(ordered):
        return f"expected min_us, p10_us, median_us and p90_us in order, got {ordered}"
    interval = (timing.ci_low_us, timing.mean_us, timing.ci_high_us)
    if list(interval) != sorted(interval):
        return f"expected ci_low_us, mean_us and ci_high_us in order, got {interval}"
    if timing.mean_us < timing.min_us * (1 - _ROUNDING):
        return f"mean_us: expected at least min_us ({timing.min_us}), got {timing.mean_us}"
    if not 0 <= timing.outlier_share < 1 or (timing.outlier_share > 0) != (timing.untrimmed_us > 0):
        return (
            "expected outlier_share below 1 and, only with outliers, a positive untrimmed_us, got "
            f"{timing.outlier_share} and {timing.untrimmed_us}"
        )
    return ""


TIMING_FIELDS = tuple(field.name for field in fields(Timing))


# What a device reports about itself at one moment: clock, temperature and power, why its clock
# is not higher, and which other processes use it.


class ClockLimit(StrEnum):
    """Why the clock of a device is not higher."""

    IDLE = "idle"
    SETTING = "setting"  # set by a user: application clocks, clocks of a group or a display
    POWER_CAP = "power cap"  # the work at this clock takes all the power that the device may have
    SLOWDOWN = "slowdown"  # the hardware's, for heat or power: to half or less
    THERMAL = "heat"
    POWER_BRAKE = "power brake"  # the machine takes power away
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a device; None for what it does not report. `rated_mhz` is the rated clock
    of its cores, `busy` the share of recent time in which they worked. `others` counts processes
    of other users: those that computed, where the device reports that."""

    clock_mhz: float | None = None
    rated_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    busy: float | None = None
    held: tuple[str, ...] | None = None
    others: int | None = None


@dataclass(frozen=True, slots=True)
class ConditionReading:
    """A condition, and the time at which it was read, on the clock of the session's journal."""

    at_s: float
    condition: Condition
