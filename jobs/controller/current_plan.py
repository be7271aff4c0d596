"""The plan that a controller works on: the newest one, or the next one if there is none.

A plan is made once its stack is known and the commits of older plans are merged. Both may need a
Job, so a reconciliation may find no plan yet.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.model.stack import Stack
from collector.profiles.discovery import run_folder
from collector.store.base import Store
from jobs.campaign.campaign_file import Campaign, RunOptions
from jobs.campaign.source_kinds import (
    BundledSource,
    CasesSource,
    CollectivesSource,
    GivenSource,
    ModelSource,
)
from jobs.campaign.target import resolve_stack_of
from jobs.controller.performer import Performer, announce, stack_at_work, stack_of_workers
from jobs.controller.remembered import KnownPlan, Memory, Rounds
from jobs.decide.job_rules import has_merged, merging
from jobs.decide.live_objects import job_views
from jobs.decide.observed import Observed
from jobs.kube.cluster import Cluster
from jobs.objects.applied_campaign import SELECTOR, SERVED_BY, Applied, open_rerun, promise
from jobs.objects.gangs import check_gangs
from jobs.planning import lifecycle
from jobs.planning.stored_plans import plan_numbers, read_plans

# Files that a campaign in a cluster names: read only below the folders given to the controller.
#
# The author of a ConfigMap chooses the path, and the controller's own files (its token, the store's
# credentials) must not become cases or part of an Event. So links count by their target, and only
# regular files are read: a pipe would block the controller forever.


def check_sources(campaign: Campaign, folders: Sequence[Path]) -> None:
    """Raise BadInput if a source or the op_mapping is a file outside all of the given folders."""
    for path in (*_paths(campaign), *([campaign.op_mapping] if campaign.op_mapping else ())):
        try:
            check_mounted(path, folders)
        except BadInput as error:
            raise BadInput(
                f"campaign {campaign.name}: {error}; on the machine with its files, "
                "opmeter launch CAMPAIGN uploads their cases"
            ) from error


def _paths(campaign: Campaign) -> Iterator[Path]:
    for source in campaign.sources:
        if isinstance(source, ModelSource):
            if isinstance(source.model, Path):
                yield source.model
        elif not isinstance(source, BundledSource | CasesSource | CollectivesSource | GivenSource):
            yield source.path


def check_mounted(path: Path, folders: Sequence[Path]) -> None:
    """Raise BadInput unless a path and everything read with it is below one of `folders`.

    This includes all files below the path and the related files that readers open. They must be
    regular files or folders. Paths outside are not accessed."""
    real = _target_of(path)
    folder = _folder_containing(real, folders)
    if folder is None:
        allowed = ", ".join(map(str, folders)) or "none (set --sources-folder)"
        raise BadInput(
            f"outside the folders of sources that this controller reads: {allowed}", path=path
        )
    if not os.path.exists(real):
        raise BadInput("no such file or folder", path=path)
    for start in {_folder_read(path.absolute(), folder), _folder_read(real, folder)}:
        for parent, inside, files in os.walk(start):
            for name in (*inside, *files):
                _check(Path(parent, name), folder)


def _target_of(path: Path) -> Path:
    """Return the target of a path; for circular links, the first link."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise BadInput("expected a valid path", path=ascii(path.name)) from error


def _folder_containing(path: Path, folders: Sequence[Path]) -> Path | None:
    resolved = map(_target_of, folders)
    return next((folder for folder in resolved if path.is_relative_to(folder)), None)


def _folder_read(path: Path, folder: Path) -> Path:
    """Return the folder that a reader of this path reads.

    For a file this includes its siblings and the top level of its run."""
    run = run_folder(path)
    if run is not None and _target_of(run).is_relative_to(folder):
        return run
    return path if path.is_dir() else path.parent


def _check(path: Path, folder: Path) -> None:
    if not _target_of(path).is_relative_to(folder):
        raise BadInput(f"the link leads out of {folder} and is not followed", path=path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadInput("expected a regular file", path=path)


@dataclass(frozen=True, slots=True)
class PlanFinder:
    """Finds or makes the plan of one campaign, during one reconciliation.

    `may_act` is called before every action. `folders` are the folders from which a campaign may
    name files. `rounds` are planned concurrently with reconciliations."""

    cluster: Cluster
    applied: Applied
    store: Store
    memory: Memory
    may_perform: Callable[[], bool]
    folders: Sequence[Path]
    rounds: Rounds

    def find(self) -> KnownPlan | None:
        """Return the campaign's plan; search for it only if the campaign has changed.

        None while its stack is being detected, the commits of older plans are being merged,
        surfaces are being learned, or another process is the leader."""
        applied, memory = self.applied, self.memory
        if memory.plan is not None and self._is_current and not memory.next_plan_due:
            return memory.plan
        about = (applied.campaign.name, applied.fingerprint)
        if self.rounds.is_making(*about):
            return None
        made = self.rounds.take(*about)
        # Another leader may have written a plan of that number while the round was made.
        is_new = made is not None and made.tables is not None
        if made is None or (is_new and made.plan.number in plan_numbers(self.store, about[0])):
            made = self._next()
        return self._written(made) if made is not None else None

    def _next(self) -> lifecycle.NextPlan | None:
        """Return the newest plan, or the next one if there is none; write nothing."""
        applied = self.applied
        # Phase 1: determine the stack and the planning state in the store.
        check_sources(applied.campaign, self.folders)
        stack = resolve_stack_of(applied.campaign, self._stack)
        if stack is None:
            return None
        state = lifecycle.read_state(applied.campaign, self.store, stack, applied.op_mapping)
        damage = tuple(filter(None, self.memory.unmerged.values()))
        state = replace(state, damage=damage)
        options = self._options(state)
        lifecycle.check_can_merge(state, supersede_stack=False)
        # Phase 2: continue with the newest plan, or make the next one once older ones are merged.
        step = lifecycle.decide(state, options)
        if not isinstance(step, lifecycle.NewPlan):
            return lifecycle.make_next(state, step, options)
        due = [plan.number for plan in state.mergeable if plan.number in step.others]
        if due and not self._has_merged(state, due):
            return None
        make = partial(lifecycle.make_next, state, step, options)
        if applied.campaign.sampling is None:
            return make()
        return self.rounds.begin(applied.campaign.name, applied.fingerprint, make)

    def _written(self, made: lifecycle.NextPlan) -> KnownPlan | None:
        """Phase 3: write and announce the plan if it is new."""
        applied, memory, plan = self.applied, self.memory, made.plan
        check_gangs(plan, applied.site)
        if made.tables is not None:
            # Making it may have taken minutes; another process may have become the leader.
            if not self.may_perform():
                return None
            lifecycle.store_next(self.store, made)
        late = tuple(other for other in made.state.mergeable if other.number != plan.number)
        damaged = frozenset(damage.shard for damage in made.state.damage)
        known = KnownPlan(plan, late, made.is_finished, damaged)
        if memory.plan is None or memory.plan.plan.plan_hash != plan.plan_hash:
            memory.forget_plan()
            announce(self.cluster, applied.object, memory, "Planned", made.news)
        memory.plan, memory.made_for = known, applied.fingerprint
        memory.next_plan_due = False
        return known

    @property
    def _is_current(self) -> bool:
        """Return whether the remembered plan was made for the campaign as it is applied now."""
        return self.memory.made_for == self.applied.fingerprint

    def _stack(self) -> Stack | None:
        if self.memory.plan is not None and self._is_current:
            return self.memory.plan.plan.stack  # the next plan is due: no pod runs any more
        read = partial(read_plans, self.store, self.applied.campaign.name)
        found = stack_at_work(self.cluster, self.applied, read)
        return found or stack_of_workers(self.cluster, self.applied)

    def _options(self, state: lifecycle.PlanningState) -> RunOptions:
        """Return the options that were requested besides the campaign and are not yet served."""
        metadata, numbers = self.applied.object["metadata"], [state.stored.last]
        notes = dict(metadata.get("annotations") or {})
        if (promised := promise(notes, numbers)) is not None:
            self.cluster.annotate_config_map(metadata["name"], {SERVED_BY: promised})
            notes[SERVED_BY] = promised
        return open_rerun(notes, numbers)

    def _has_merged(self, state: lifecycle.PlanningState, due: Sequence[int]) -> bool:
        """Return whether a Job has merged the commits of these older plans.

        Create the Job if there is none yet. The next plan is made after that. Cases committed while
        the Job runs are measured again and published with the next plan."""
        applied, memory = self.applied, self.memory
        name = applied.campaign.name
        jobs = job_views(self.cluster.jobs(f"{SELECTOR}={name}"), memory.jobs)
        key = short_hash([name, state.stored.last + 1, applied.fingerprint], 12)
        if has_merged(jobs, key):
            return True
        known = KnownPlan(state.stored.plans[-1])
        performer = Performer(self.cluster, applied, known, self.store, memory)
        for action in merging(jobs, key, tuple(due), partial=True):
            if self.may_perform():
                performer.perform(action, Observed(frozenset(), (), jobs))
        return False
