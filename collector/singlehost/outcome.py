"""What a microbenchmark did to a tree: all that its reports and the command tell."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from collector.case import Case, shape_text
from collector.database.tree import Cells
from collector.measurement import Measurement, Outcome
from collector.singlehost.version_files import Place

# A microbenchmark this far from the source's own run is worth a look (msmodeling's bounds).
LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.2


class Update(StrEnum):
    """Which rows a microbenchmark writes."""

    ALL = "all"
    MISSING_ONLY = "missing-only"  # those without any positive duration; no row is added


@dataclass(frozen=True, slots=True)
class Written:
    """A row that was given a number. `launches` is how many it is the mean of, `ran` what is to
    be known about whose they were: empty where they are the row's own. `old_us` is what the row
    had before, `profiling_us` the source's own run."""

    place: Place
    case: Case
    mean_us: float
    launches: int
    ran: str = ""
    old_us: float | None = None
    profiling_us: float | None = None
    is_new: bool = False
    has_changed: bool = True


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A case that no row got a number for, and why."""

    case: Case
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """Launches that no row took: their mean, and what became of them."""

    case: Case
    mean_us: float
    launches: int
    fate: str


@dataclass(frozen=True, slots=True)
class MicrobenchResult:
    """`about` says what was measured on what; `kept` counts rows that had their duration already,
    `alone` are rows that no launch fits. `is_complete` is False where it was ended early."""

    folder: Path
    update: Update
    about: tuple[tuple[str, str], ...]
    written: tuple[Written, ...] = ()
    kept: int = 0
    unanswered: tuple[Unanswered, ...] = ()
    leftover: tuple[Leftover, ...] = ()
    alone: tuple[Case, ...] = ()
    duplicates: tuple[tuple[Case, int], ...] = ()
    deleted: tuple[tuple[str, Cells], ...] = ()
    measurements: tuple[Measurement, ...] = ()
    is_complete: bool = True

    @property
    def failed(self) -> tuple[Unanswered, ...]:
        """The cases that were launched, and gave no number."""
        return tuple(case for case in self.unanswered if has_failed(case.outcome))

    @property
    def skipped(self) -> tuple[Unanswered, ...]:
        """The cases that nobody launched: without an operator, or refused by it."""
        return tuple(case for case in self.unanswered if not has_failed(case.outcome))


@dataclass(frozen=True, slots=True)
class Gap:
    """A row's microbenchmark against the source's own run."""

    row: Written
    profiling_us: float

    @property
    def ratio(self) -> float:
        return self.row.mean_us / self.profiling_us

    @property
    def difference_us(self) -> float:
        return abs(self.row.mean_us - self.profiling_us)

    @property
    def is_hot(self) -> bool:
        return not LOWEST_RATIO <= self.ratio <= HIGHEST_RATIO


def has_failed(outcome: Outcome) -> bool:
    """Whether a case was launched without giving a number."""
    return outcome not in (Outcome.OK, Outcome.UNSUPPORTED, Outcome.REJECTED)


def gaps(result: MicrobenchResult) -> list[Gap]:
    """Every written row that has both durations; the widest gap comes first."""
    found = [Gap(row, row.profiling_us) for row in result.written if row.profiling_us]
    return sorted(
        found,
        key=lambda gap: (
            -max(gap.ratio, 1 / gap.ratio),
            -gap.difference_us,
            gap.row.case.kernel_type,
            gap.row.place.at,
        ),
    )


def shapes_of(case: Case) -> str:
    """`4096,1024;4096,1024 -> 4096,1024`, with N/A for what is not known."""
    sides = []
    for slots in (case.inputs, case.outputs):
        text = "N/A" if slots is None else ";".join(shape_text(slot.shape) for slot in slots)
        sides.append(text or "-")
    return " -> ".join(sides)


def tensors_of(case: Case) -> str:
    """Dtypes and formats of the inputs, and what else tells the case: `FLOAT;FLOAT ND;ND`."""
    slots = case.inputs or ()
    words = [";".join(slot.dtype for slot in slots), ";".join(slot.format for slot in slots)]
    words += [case.op_state, *(f"{name}={value}" for name, value in case.attributes)]
    return " ".join(word for word in words if word)
