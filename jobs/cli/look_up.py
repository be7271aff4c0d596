"""What a version of the database has of what somebody names: the sources of a campaign, a profile,
or a model with its serving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.codec.errors import BadInput
from collector.codec.text import counted
from jobs.cli.database import chosen_commit

if TYPE_CHECKING:
    from collector.database.state import State
    from collector.model.case import Case
    from collector.model.record import CaseRecord
    from collector.model.stack import Stack
    from collector.store.base import Store
    from jobs.campaign.campaign_file import Campaign
    from jobs.planning.coverage import Covered
    from jobs.planning.forecast import Peaks


# What options name, as a campaign with one source: models and profiles that are looked up.

_MOST_DEVICES = 1 << 16  # nothing is launched: as many as any message needs


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as options describe it; None and empty where they say nothing."""

    name: str
    layout: str = ""
    concurrency: tuple[int, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    batched_tokens: int | None = None
    graph_sizes: tuple[int, ...] = ()
    phase: str | None = None
    release: str | None = None
    mixed: bool = False
    predicted: int | None = None
    skew: int | None = None
    imbalance: int | None = None

    def source(self) -> dict[str, Any]:
        """The source of a campaign file that says the same."""
        from collector.shapes.layout import layout_of
        from collector.shapes.models import bundled_decoder

        said = layout_of(self.layout)
        is_folder = Path(self.name).is_dir() and bundled_decoder(self.name) is None
        serving = {
            "concurrency": list(self.concurrency or (1, 8, 32)),
            "input": self.input_tokens or 4096,
            "output": self.output_tokens or 512,
            "max_batched_tokens": self.batched_tokens,
            "graph_sizes": list(self.graph_sizes),
            "phase": self.phase,
            "mixed": self.mixed,
            "predicted_tokens": self.predicted,
            "skew": self.skew,
            "imbalance": self.imbalance,
        }
        layout = {
            **{name: getattr(said, name) for name in ("tp", "dp", "ep", "nz", "sequence_split")},
            "quantisation": str(said.quantisation),
            "experts": str(said.experts),
        }
        told = {
            "model": f"{self.name}/config.json" if is_folder else self.name,
            "layout": layout,
            "serving": {name: value for name, value in serving.items() if value},
        }
        return told | ({"release": self.release} if self.release else {})


def campaign_of(source: Mapping[str, Any], grid: str, device: str) -> Campaign:
    """The campaign with this source; with a `grid`, such as `48,8,2`, of its messages as well.
    Files are named from where the command runs. BadInput for a source that cannot be meant."""
    import yaml

    from collector.model.stack import backend_of
    from jobs.campaign.campaign_file import campaign_from_text

    sizes = [size.strip() for size in grid.split(",")] if grid else []
    if not all(size.isdecimal() for size in sizes):
        raise BadInput(f"--grid: expected numbers such as 48,8,2, got {grid!r}")
    messages = {"collectives": {"grid": [int(size) for size in sizes]}} if sizes else {}
    told = {
        "campaign": "options",
        "sources": [{**source, **messages}],
        "backend": backend_of(device),
        "devices": _MOST_DEVICES,
    }
    return campaign_from_text(yaml.safe_dump(told), path="the options", base=Path.cwd())


# The version directory that a verb looks things up in.


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """A directory of a database's version, by its `place` there."""

    store: Store
    state: State
    place: str

    @property
    def stack(self) -> Stack:
        return self.state.versions[self.place].shown_stack


def open_version(root: str, number: int | None, directory: str | None) -> ShownVersion:
    """The directory that is named, or the only one, of a version, or the newest. BadInput for one
    that is not there."""
    from collector.database.snapshot import load_state
    from jobs.cli.opening import open_root

    store = open_root(root)
    state = load_state(store, chosen_commit(store, root, number))
    there = sorted(state.versions)
    place = there[0] if directory is None and len(there) == 1 else directory
    if place is None or place not in state.versions:
        raise BadInput(f"--directory: expected one of {', '.join(there)}")
    return ShownVersion(store, state, place)


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
    from jobs.cli.opening import DEFAULT_ROOT, open_campaign, open_root
    from jobs.planning.coverage import covered
    from jobs.planning.forecast import peaks_of
    from jobs.planning.worth import launched

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
    from collector.model.stack import Stack
    from collector.ops.floor import described_devices
    from jobs.cli.opening import open_root
    from jobs.planning.coverage import covered
    from jobs.planning.forecast import peaks_of
    from jobs.planning.worth import launched

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
    from collector.database.rows import case_records

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
    from collector.database.layout import case_cells
    from collector.ranks.collective import is_collective
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
