"""Look up a workload in a version of the database: the sources of a campaign, a profile, or a model
with the load that it serves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.model.measurement import UNMEASURABLE, Outcome
from collector.model.stack import HOST, Stack, backend_of
from collector.ranks.collective import is_collective
from collector.store.opening import DEFAULT_ROOT
from jobs.cli.opening import chosen_commit, open_campaign, open_database, open_root
from jobs.cli.options import DIRECTORY_VARIABLE, VersionOptions, WorkloadOptions

if TYPE_CHECKING:
    from collector.database.commits import Commit
    from collector.database.manifest import SnapshotManifest
    from collector.database.state import State
    from collector.model.record import CaseRecord
    from collector.store.base import Store
    from jobs.campaign.campaign_file import Campaign
    from jobs.campaign.source_kinds import StepCollectives
    from jobs.planning.coverage import CoveredCase
    from jobs.planning.forecast import Peaks
    from jobs.planning.workload import Workload
    from opmeter.version import Version


_OPTIONS = "the options"  # the path of the document that is made of a command's options
_MOST_DEVICES = 1 << 16  # nothing is launched: as many as any message needs


def campaign_of(source: Mapping[str, Any], grid: str, device: str) -> Campaign:
    """Return the campaign with this source; with a `grid`, such as `48,8,2`, with its messages too.
    Paths are relative to the current folder. Raises BadInput for an invalid source."""
    import yaml

    from jobs.campaign.campaign_file import campaign_from_text

    sizes = _tiers(grid)
    messages = {"collectives": {"grid": sizes}} if sizes else {}
    document = {
        "campaign": "options",
        "sources": [{**source, **messages}],
        "backend": backend_of(device),
        "devices": _MOST_DEVICES,
    }
    try:
        return campaign_from_text(yaml.safe_dump(document), path=_OPTIONS, base=Path.cwd())
    except BadInput as error:
        raise error if error.path != _OPTIONS else _of_option(error) from error


def messages_of(grid: str) -> StepCollectives:
    """Return how the messages of an engine are measured on a grid such as `48,8,2`."""
    from collector.ranks.topology import Grid
    from jobs.campaign.source_kinds import StepCollectives

    tiers = _tiers(grid)
    if not tiers or min(tiers) < 1:
        raise BadInput(f"--grid: expected numbers such as 48,8,2, got {grid!r}")
    return StepCollectives(Grid(tuple(tiers)))


def _tiers(grid: str) -> list[int]:
    sizes = [size.strip() for size in grid.split(",")] if grid else []
    if not all(size.isascii() and size.isdecimal() for size in sizes):
        raise BadInput(f"--grid: expected numbers such as 48,8,2, got {grid!r}")
    return [int(size) for size in sizes]


def _of_option(error: BadInput) -> BadInput:
    """Return the error about a value of that document as one about the option that gave it:
    `sources[0].serving.phase` is --phase."""
    place, _, what = str(error).removeprefix(f"{_OPTIONS}:{error.line}: ").partition(": ")
    name = re.sub(r"^sources\[0\]\.(?:serving\.|collectives\.)?|[.\[].*", "", place)
    return BadInput(f"--{name.replace('_', '-')}: {what}")


@dataclass(frozen=True, slots=True)
class OpenedVersion:
    """A version directory of a database version, by its path (`place`): its state, and the
    directory as queries read it, with the cases that it reuses of older ones."""

    store: Store
    state: State
    place: str
    directory: Version

    @property
    def stack(self) -> Stack:
        return self.state.versions[self.place].shown_stack


def open_version(root: str, version: str | None, directory: str | None) -> OpenedVersion:
    """Return the named version directory, or the only one, of a version or of the newest. Raises
    BadInput if it does not exist."""
    from collector.database.snapshot import load_state
    from opmeter.database import database_at

    store, commit, manifest, place = _chosen(root, version, directory)
    state = load_state(store, commit, manifest, paths=[place])
    opened = database_at(store, commit).directory(place, reused=True)
    return OpenedVersion(store, state, place, opened)


def shown_stack(root: str, version: str | None, directory: str | None) -> Stack:
    """Return the stack that the same version directory shows; no measurement is read."""
    _, _, manifest, place = _chosen(root, version, directory)
    return manifest.versions[place].version.shown_stack


def _chosen(
    root: str, version: str | None, directory: str | None
) -> tuple[Store, Commit, SnapshotManifest, str]:
    from collector.database.manifest import read_manifest

    store = open_database(root)
    commit = chosen_commit(store, root, version)
    manifest = read_manifest(store, commit)
    return store, commit, manifest, chosen_directory(sorted(manifest.versions), directory)


def chosen_directory(there: Sequence[str], directory: str | None) -> str:
    """Return the version directory that an option or the variable names, or the only one of a
    device. Raises BadInput for another one, and where several stacks are there and none is
    named."""
    if not there:
        raise BadInput("expected a version with a version directory, got one without any")
    devices = [path for path in there if backend_of(path) != HOST]
    if directory is None and len(devices or there) == 1:
        return (devices or there)[0]
    if directory is None or directory not in there:
        got = f", got {directory!r}" if directory else ""
        known = ", ".join(there)
        raise BadInput(f"--directory or {DIRECTORY_VARIABLE}: expected one of {known}{got}")
    return directory


@dataclass(frozen=True, slots=True)
class CoverageLookup:
    """Each requested case with its coverage in the version directory `place`. `free` are the kernel
    types that the version counts as zero_cost."""

    place: str
    campaign: Campaign
    peaks: Peaks
    cases: tuple[CoveredCase, ...]
    communication_us: float
    free: frozenset[str]

    @property
    def gaps(self) -> list[CaseRecord]:
        """The cases without a duration, the most expensive first."""
        from jobs.planning.coverage import CoverageStatus

        ordered = sorted(self.cases, key=lambda one: -one.workload.time_us)
        return [one.workload.record for one in ordered if one.status is not CoverageStatus.EXACT]


def find_covered(
    workload: WorkloadOptions, where: VersionOptions, *, device: str | None = None, advice: str = ""
) -> CoverageLookup:
    """Return how far a version covers a workload; for a stack without a version, its `device`.
    Raises BadInput for invalid options, and where there is no version, with `advice`."""
    from collector.database.commits import find_head
    from jobs.planning.coverage import covered_cases
    from jobs.planning.forecast import peaks_of
    from jobs.planning.workload import workload_of
    from opmeter.answers import MISSES, Reason

    workload.check()
    described = open_campaign(workload.campaign) if workload.campaign else None
    shown = None
    if device is None:
        root = where.root or (described.store if described else None) or DEFAULT_ROOT
        if advice and find_head(open_database(root)) is None:
            raise BadInput(f"no database at {root}: nothing was merged there yet; {advice}")
        shown = open_version(root, where.version, where.directory)
        place, stack = shown.place, shown.stack
    else:
        check_known_device(device, where)
        place, stack = device, Stack(device=device, torch="")
    campaign = described or _campaign(workload, stack.device)
    peaks = peaks_of(stack)
    launched = workload_of(
        campaign, shown.store if shown else open_root(where.root, campaign), peaks
    )
    failed, unreadable = _outcomes(shown.state, place) if shown else ({}, frozenset())
    unsupported = {one for one, outcome in failed.items() if outcome in UNMEASURABLE}
    answer = shown.directory.query_record if shown else lambda record: MISSES[Reason.NO_KERNEL]
    return CoverageLookup(
        place,
        campaign,
        peaks,
        covered_cases(launched.cases, answer, failed, unsupported, unreadable),
        launched.communication_us,
        _free(shown.state, place) if shown else frozenset(),
    )


def workload_on(workload: WorkloadOptions, stack: Stack, store: Store) -> Workload:
    """Return what a workload launches on a stack. Raises BadInput for invalid options."""
    from jobs.planning.forecast import peaks_of
    from jobs.planning.workload import workload_of

    workload.check()
    described = open_campaign(workload.campaign) if workload.campaign else None
    return workload_of(described or _campaign(workload, stack.device), store, peaks_of(stack))


def profiled_records(profile: Path, grid: str, shown: OpenedVersion) -> list[CaseRecord]:
    """Return the cases of a profile, each with its times in it."""
    from jobs.planning.forecast import peaks_of
    from jobs.planning.workload import workload_of

    described = campaign_of({"profile": str(profile)}, grid, shown.stack.device)
    workload = workload_of(described, shown.store, peaks_of(shown.stack), in_situ=True)
    return [one.record for one in workload.cases]


def check_known_device(device: str, where: VersionOptions) -> None:
    """Raise BadInput unless the rates of a device are known, and no version is named."""
    from collector.ops.floor import described_devices

    is_named = where.directory not in (None, os.environ.get(DIRECTORY_VARIABLE))
    if where.version is not None or is_named:
        raise BadInput("--device excludes --version and --directory")
    if device not in described_devices():
        known = ", ".join(described_devices())
        raise BadInput(
            f"--device: expected a device whose rates are known ({known}), got {device!r}"
        )


def _campaign(workload: WorkloadOptions, device: str) -> Campaign:
    if workload.profile is not None:
        return campaign_of({"profile": str(workload.profile)}, workload.grid, device)
    if workload.recording is not None:
        return campaign_of({"recording": str(workload.recording)}, workload.grid, device)
    return campaign_of(workload.model_source(), workload.grid, device)


def _outcomes(state: State, place: str) -> tuple[Mapping[str, Outcome], frozenset[str]]:
    """Return the outcomes of the cases that were tried without success, by id, and the ids of the
    measured ones whose inputs are not known."""
    from collector.database.query import case_results
    from collector.database.rows import case_records

    results = case_results(state, place)
    failed = {one: result.outcome for one, result in results.items() if not result.is_good}
    records = case_records(state.cases)
    unreadable = (
        case_id
        for case_id, record in records
        if case_id in results and case_id not in failed and record.case.inputs is None
    )
    return failed, frozenset(unreadable)


def _free(state: State, place: str) -> frozenset[str]:
    from collector.database.op_mapping import zero_cost_kernels

    mapping = state.versions[place].op_mapping
    return zero_cost_kernels(mapping.text) if mapping is not None else frozenset()


def check_missing(folder: Path | None) -> None:
    """Raise BadInput for an existing folder: missing cases are written to a new one."""
    if folder is not None and folder.exists():
        raise BadInput("--missing: expected a folder that does not exist yet", path=folder)


def written(folder: Path, gaps: Sequence[CaseRecord]) -> str:
    """Write the records as a tree's version, in their order; return a line about it."""
    from collector.database.layout import case_cells
    from collector.singlehost.version_files import VersionFiles

    kernels = [record for record in gaps if not is_collective(record.kernel_type)]
    if not kernels:
        return "nothing written: no kernel is missing"
    files = VersionFiles.read(folder)
    for record in kernels:
        files.append(record.kernel_type, case_cells(record))
    files.write()
    left = len(gaps) - len(kernels)
    more = f", {counted(left, 'message')} left out" if left else ""
    return f"wrote {counted(len(kernels), 'case')} to {folder}{more}; as a source: tree: {folder}"
