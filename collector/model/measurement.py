"""A measurement: the timing of one case with its certificate, or the reason there is none.

One is made each time a case is tried, and it is kept for ever. `row.py` has its form as text.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.model.stack import Runtime

# What the device's cache held before each repeat: what the one before left, nothing of the case, or
# what the launches left that stand before it in a run. Only the first two are of the case alone.
ISOLATED = ("warm", "cold")
CONTEXT = "context"
CACHES = (*ISOLATED, CONTEXT)
ENOUGH_CLEAN = 3  # repeats that nothing disturbed: with fewer, more are wanted
_FAR = 1e15  # more than any time or count of a session, and small enough to be squared
_ROUNDING = 1e-9  # a mean of equal numbers may be off in its last digit


class Proof(StrEnum):
    """Whether records show that the launches of a number are the call that its case names."""

    NONE = ""  # no profiler of this device tells what a launch was given
    PROVED = "proved"  # kernel type and every tensor that the case names
    UNVERIFIED = "unverified"  # kernel type and count; of tensors the profiler told too little


class Library(StrEnum):
    """Whose kernel answered. A case may ask for CANN's or vLLM-Ascend's, where both have it."""

    NONE = ""  # the reference ran, in plain torch
    CANN = "cann"
    VLLM_ASCEND = "vllm-ascend"  # its custom OPP, or its library of kernels
    ATB = "atb"
    TRITON = "triton"  # kernels of vLLM-Ascend's


class Outcome(StrEnum):
    """How a case ended. Everything but OK has a reason beside it."""

    OK = "ok"
    GATED = "gated"  # measured, and a gate refused the number
    IMPLAUSIBLE = "implausible"  # no device takes so long, or so short, for it
    UNSUPPORTED = "unsupported"  # no operator is declared for it, or its inputs are unknown
    REJECTED = "rejected"  # the declaration refuses these shapes or dtypes
    FAILED = "failed"  # the operator raised
    OOM = "oom"  # it did not fit into memory
    CRASHED = "crashed"  # the session died in it
    HUNG = "hung"  # it outlived its limit
    SUBSTITUTED = "substituted"  # another kernel ran, or on other tensors, or several a call
    PROFILER_LOST = "profiler_lost"  # launches and records do not agree


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of the accepted repeats, from the profiler alone, in microseconds.

    `ci_low_us` and `ci_high_us` bound the 95 % interval of the mean within this one session: what
    other sessions or devices would show may lie outside. `spread` is 1.4826 * MAD / median. Raises
    BadInput for numbers that no durations have: ones that are not finite, times of nothing or less,
    and ends that are not in order.
    """

    mean_us: float
    ci_low_us: float
    ci_high_us: float
    median_us: float
    min_us: float
    p10_us: float
    p90_us: float
    spread: float

    def __post_init__(self) -> None:
        if fault := _timing_fault(self):
            raise BadInput(f"invalid timing: {fault}")


@dataclass(frozen=True, slots=True)
class Companion:
    """Another kernel that ran in the case's window: recorded, never filed as a measurement."""

    kernel_type: str
    count: int
    mean_us: float


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What the device told about itself; None where it tells nothing."""

    clock_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What else had the device while the repeats of a case ran: of `watched` repeats nothing
    disturbed `clean`, which alone make the timing unless there are none. `waited_share` is the time
    that a thread waited for a core, `stolen_share` what a virtual machine's host took of one, both
    over the time that the repeats took; `switches` is how often a thread had to leave its core.

    The others are of a gpu or an npu, None where it does not tell, which watches no repeat where it
    tells nothing that disturbs. Of the readings around the repeats, at most one before and one
    behind, something that slows held the clock down in `throttled_share`, the limit of its power in
    `capped_share`; `clock_share` is what was left of the clock, over the rated one or the one
    before; `others` had the device, and `power_w` is the most that it took. `launch_gap_share` of
    the time from the first launch to the last one's end nothing ran.

    The last two are of a cpu, from before the first repeat to behind the last: `pressure_share` of
    that time some task of the machine waited for a core, and `worked_share` of the time of all
    threads of the team cores worked for the process. None where nobody told."""

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
        """Whether something disturbed every repeat."""
        return not self.clean and self.watched > 0


@dataclass(frozen=True, slots=True)
class CanaryReading:
    """What a reference case took at one place of a session, `at_s` after the first case began: the
    mean of so many accepted repeats, and their relative standard deviation."""

    case: str  # as `Case.describe` says it
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

    campaign: str
    plan: int
    plan_hash: str
    head_commit: int  # number of the head when the plan was made; 0 for an empty database
    shard: str
    attempt: str
    session: int
    stack_id: str
    node: str
    device_serial: str | None
    rank: int
    runtime: Runtime
    image_digest: str | None
    collector_version: str
    raw_key: str | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One case, tried once. `n_expected` launches were issued for timing, `n_observed` were
    recorded, `n_accepted` passed the outlier rule and make the timing.

    `disturbance` is None where nobody tells what else had the device. `canaries` are what the
    session read of its reference cases: of all its measurements the same.
    `op_state` is what the profiler said of the launches. `asked` is empty but where another case
    had been asked for (its id), and this is the kernel that really ran. `recorded` are the cells
    of inputs and outputs as they were recorded, where those are not the tensors of the case that
    was asked for. `library` is whose kernel answered, `assumes` what its inputs were taken to hold
    where no row tells and its time may depend on it. `context` names the launches that ran before
    each repeat, where some did. `profiler_floor_us` is the shortest duration that the session's
    profiler tells of a launch like the case's; 0 where nobody knows.
    """

    case_id: str
    kernel_type: str
    outcome: Outcome
    reason: str
    provenance: Provenance
    n_expected: int = 0
    n_observed: int = 0
    n_accepted: int = 0
    timing: Timing | None = None
    cache: str = "warm"
    compute_dtype: str | None = None
    core: str | None = None
    op_state: str = ""
    asked: str = ""
    companions: tuple[Companion, ...] = ()
    counters: tuple[tuple[str, float], ...] = ()
    warnings: tuple[str, ...] = ()
    opened: DeviceState = DeviceState()
    closed: DeviceState = DeviceState()
    started_at: str = ""
    ended_at: str = ""
    disturbance: Disturbance | None = None
    canaries: tuple[CanaryReading, ...] = ()
    identity: Proof = Proof.NONE
    recorded: tuple[tuple[str, str], ...] = ()
    library: Library = Library.NONE
    assumes: str = ""
    context: str = ""
    profiler_floor_us: float = 0.0

    @property
    def measurement_id(self) -> str:
        p = self.provenance
        return measurement_id_of(p.shard, p.attempt, p.session, self.case_id, p.runtime, self.asked)

    @property
    def is_filed(self) -> bool:
        """Whether this was not asked for: it answers no case of its shard."""
        return bool(self.asked)

    @property
    def is_good(self) -> bool:
        return self.outcome is Outcome.OK and self.timing is not None

    @property
    def is_disturbed(self) -> bool:
        """Whether it has a number, and something else had the device in every repeat."""
        return self.is_good and self.disturbance is not None and self.disturbance.is_total

    @property
    def rank_key(self) -> tuple[int, int, str, str]:
        """Of two answers to one question the greater key shows."""
        p = self.provenance
        return (p.head_commit, p.plan, p.plan_hash, self.measurement_id)


def measurement_id_of(
    shard: str, attempt: str, session: int, case_id: str, runtime: str, asked: str
) -> str:
    """What one try of a case is known by. Of two cases of a session one may be asked for, and also
    run in place of the other: these are two tries."""
    origin = [shard, attempt, session, case_id, runtime]
    return short_hash([*origin, asked] if asked else origin, 24)


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
    return ""


TIMING_FIELDS = tuple(field.name for field in fields(Timing))


# What a device told of itself at one moment: clock, heat and power, why its clock is not higher,
# and who else has it.


class Held(StrEnum):
    """Why the clock of a device is not higher than it is."""

    IDLE = "idle"
    SETTING = "setting"  # somebody wants it so: application clocks, clocks of a group or a display
    POWER_CAP = "power cap"  # the work at this clock takes all the power that the device may have
    SLOWDOWN = "slowdown"  # the hardware's, for heat or power: to half or less
    THERMAL = "heat"
    POWER_BRAKE = "power brake"  # the machine takes power away
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Condition:
    """None stands for what the device does not tell. `rated_mhz` is the clock at which its cores
    are to work, `busy` the share of the time that they worked lately. `others` are processes on it
    that are none of ours: those that computed, where that is told."""

    clock_mhz: float | None = None
    rated_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    busy: float | None = None
    held: tuple[str, ...] | None = None
    others: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A condition, and when it was read, on the clock of a session's journal."""

    at_s: float
    condition: Condition
