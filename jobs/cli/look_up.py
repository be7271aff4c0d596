"""What a version of the database has of what somebody names: the sources of a campaign, a profile,
or a model with its serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.one_source import ServedModel, campaign_of
from jobs.cli.opening import DEFAULT_ROOT, open_campaign, open_root
from jobs.cli.shown_version import open_version

if TYPE_CHECKING:
    from collector.case import Case
    from collector.database.state import State
    from collector.record import CaseRecord
    from jobs.campaign.campaign_file import Campaign
    from jobs.planning.coverage import Covered
    from jobs.planning.forecast import Peaks


@dataclass(frozen=True, slots=True)
class Asked:
    """One of a campaign's file, a profile and a model; of the last two, `grid` says how ranks
    lie."""

    campaign: str | None
    profile: Path | None
    model: ServedModel
    grid: str = ""

    def __str__(self) -> str:
        return str(
            self.campaign or self.profile or f"{self.model.name} {self.model.layout}".strip()
        )

    def check(self) -> None:
        """Raise BadInput for options that go with nothing that is named."""
        if sum(bool(one) for one in (self.campaign, self.profile, self.model.name)) != 1:
            raise BadInput("expected one of CAMPAIGN, --profile and --model")
        if not self.model.name and self.model != ServedModel(""):
            raise BadInput("options of a model want --model: a campaign and a profile say theirs")
        if self.campaign and self.grid:
            raise BadInput("--grid: a campaign says which messages it wants, by `collectives`")


@dataclass(frozen=True, slots=True)
class Where:
    """A version of a database, by its store, its number and its directory; or the `device` of a
    stack that has no version yet. None for the usual."""

    root: str | None
    version: int | None = None
    directory: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Each case that is asked for with its standing in `place`, a version's directory. `free` are
    the kernel types that the version counts as zero_cost."""

    place: str
    campaign: Campaign
    peaks: Peaks
    cases: tuple[Covered, ...]
    communication_us: float
    free: frozenset[str]

    @property
    def gaps(self) -> list[CaseRecord]:
        """What has no duration, that first which takes most time."""
        from jobs.planning.coverage import Standing

        ordered = sorted(self.cases, key=lambda one: -one.wanted.time_us)
        return [one.wanted.record for one in ordered if one.standing is not Standing.EXACT]


def find_covered(asked: Asked, where: Where, advice: str = "") -> Found:
    """How far a version has what is asked for. BadInput for what cannot be meant, and where no
    version is, with `advice` on what to do then."""
    from collector.database.commits import find_head
    from jobs.planning.coverage import covered
    from jobs.planning.coverage_sources import launched
    from jobs.planning.forecast import peaks_of

    asked.check()
    described = open_campaign(asked.campaign) if asked.campaign else None
    if where.device is not None:
        return _of_no_version(asked, where, described)
    root = where.root or (described.store if described else None) or DEFAULT_ROOT
    if advice and find_head(open_root(root)) is None:
        raise BadInput(f"no database at {root}: nothing was merged there yet; {advice}")
    shown = open_version(root, where.version, where.directory)
    campaign = described or _campaign(asked, shown.stack.device)
    peaks = peaks_of(shown.stack)
    wanted = launched(campaign, shown.store, peaks)
    cases, failed = _answered(shown.state, shown.place)
    return Found(
        shown.place,
        campaign,
        peaks,
        covered(wanted.cases, cases, failed),
        wanted.communication_us,
        _free(shown.state, shown.place),
    )


def _of_no_version(asked: Asked, where: Where, described: Campaign | None) -> Found:
    """The same where nothing was measured yet: all of it is missing."""
    from collector.ops.peaks import described_devices
    from collector.stack import Stack
    from jobs.planning.coverage import covered
    from jobs.planning.coverage_sources import launched
    from jobs.planning.forecast import peaks_of

    if where.version is not None or where.directory is not None:
        raise BadInput("--device is of a stack without a version: it takes no --version")
    device = where.device or ""
    if device not in described_devices():
        known = ", ".join(described_devices())
        raise BadInput(
            f"--device: expected a device whose rates are known ({known}), got {device!r}"
        )
    peaks = peaks_of(Stack(device=device, torch=""))
    campaign = described or _campaign(asked, device)
    wanted = launched(campaign, open_root(where.root, campaign), peaks)
    cases = covered(wanted.cases, {}, ())
    return Found(device, campaign, peaks, cases, wanted.communication_us, frozenset())


def _campaign(asked: Asked, device: str) -> Campaign:
    if asked.profile is not None:
        return campaign_of({"profile": str(asked.profile)}, asked.grid, device)
    return campaign_of(asked.model.source(), asked.grid, device)


def _answered(state: State, place: str) -> tuple[Mapping[str, Case], frozenset[str]]:
    """The cases with a duration, and the ids of those that were tried and have none."""
    from collector.database.query import answers
    from collector.database.record_rows import case_records

    answered = answers(state, place)
    good = {case_id for case_id, answer in answered.items() if answer.is_good}
    records = case_records(state.cases)
    cases = {case_id: record.case for case_id, record in records if case_id in good}
    return cases, frozenset(answered.keys() - good)


def _free(state: State, place: str) -> frozenset[str]:
    from collector.database.op_mapping import zero_cost_kernels

    mapping = state.versions[place].op_mapping
    return zero_cost_kernels(mapping.text) if mapping is not None else frozenset()


def check_missing(folder: Path | None) -> None:
    """Raise BadInput for a folder that is there: what is missing goes into a new one."""
    if folder is not None and folder.exists():
        raise BadInput("--missing: expected a folder that does not exist yet", path=folder)


def written(folder: Path, gaps: Sequence[CaseRecord]) -> str:
    """The records, written as a tree's version in their order; what was done, in a line."""
    from collector.collective_case import is_collective
    from collector.database.columns import case_cells
    from collector.singlehost.version_files import VersionFiles

    kernels = [record for record in gaps if not is_collective(record.kernel_type)]
    if not kernels:
        return "nothing is written: no kernel is to be measured"
    files = VersionFiles.read(folder)
    for record in kernels:
        files.append(record.kernel_type, case_cells(record))
    files.write()
    left = len(gaps) - len(kernels)
    told = f", {counted(left, 'message')} left out" if left else ""
    return f"{counted(len(kernels), 'case')} in {folder}{told}; a campaign's source: tree: {folder}"
