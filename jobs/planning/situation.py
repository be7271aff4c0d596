"""From a campaign to the plan that is measured next: a new one, or the one to continue."""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from collector.codec.errors import BadInput
from collector.database.commits import Commit, head_to_extend
from collector.database.layout import OP_MAPPING
from collector.database.op_mapping import check_op_mapping
from collector.database.published import HeldShards, Published
from collector.model.plan import AGAIN_SHARE, Plan
from collector.model.stack import Stack
from collector.ops.registry import find
from collector.profiles.rows import read_small_file
from collector.ranks.collective import is_collective
from collector.store.base import Store
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.source_kinds import TreeSource
from jobs.campaign.target import resolve_stack
from jobs.planning.candidates import HeadAnswer
from jobs.planning.damage import owed_cases
from jobs.planning.lifecycle import (
    Continue,
    Finished,
    NewPlan,
    PlanState,
    may_measure_again,
    next_step,
    round_before,
    second_look,
)
from jobs.planning.plan_cases import PlanRequest
from jobs.planning.plan_making import PlannedRound, inputs_hash, make_plan
from jobs.planning.sources import LoadedSource, load_sources
from jobs.planning.stored_plans import (
    StoredPlans,
    committed_shards,
    find_plans,
    unchanged,
    write_round,
)


@dataclass(frozen=True, slots=True)
class Situation:
    """All facts that are read before anything is decided."""

    campaign: Campaign
    sources: tuple[LoadedSource, ...]
    stack: Stack
    op_mapping: str | None
    stored: StoredPlans
    committed: frozenset[str]
    published: Published
    held_shards: HeldShards  # of the campaign, for any head

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Return the campaign's earlier plans that can be read."""
        return self.stored.plans

    @property
    def head(self) -> Commit | None:
        """Return the database's newest commit at the time of reading."""
        return self.published.commit

    @property
    def held(self) -> frozenset[str]:
        """Return the campaign's shards that this head holds."""
        return self.held_shards.at(self.head)


def survey(
    campaign: Campaign,
    store: Store,
    stack: Stack | None = None,
    op_mapping: str | None = None,
) -> Situation:
    """Read the sources, the stack, the campaign's earlier plans and the database's head.

    `stack` is the stack of the machines that will measure, if they are not this one. `op_mapping`
    is the text of the mapping if it was sent with the campaign and not in a file.
    """
    stack = stack or resolve_stack(campaign)
    sources = load_sources(campaign, store)
    op_mapping = _checked(op_mapping) if op_mapping else op_mapping_of(campaign)
    return _found(campaign, sources, stack, op_mapping, store, HeldShards(store, campaign.name))


def once_more(situation: Situation, store: Store) -> Situation:
    """Return the planning state with the current content of the store.

    The inputs of the campaign stay as they were read: files are large, and a plan describes them as
    they were when its run began.
    """
    asked = (situation.campaign, situation.sources, situation.stack, situation.op_mapping)
    return _found(*asked, store, situation.held_shards)


def _found(
    campaign: Campaign,
    sources: tuple[LoadedSource, ...],
    stack: Stack,
    op_mapping: str | None,
    store: Store,
    held: HeldShards,
) -> Situation:
    stored, committed = find_plans(store, campaign.name), committed_shards(store, campaign.name)
    published = Published.of(store, head_to_extend(store))
    plans = published.manifest.plans if published.manifest else ()
    merged = [plan for plan in plans if plan.campaign == campaign.name]
    stored = unchanged(stored, merged, lambda: held.at(published.commit))
    return Situation(campaign, sources, stack, op_mapping, stored, committed, published, held)


def choose_step(
    situation: Situation,
    *,
    again: bool,
    retry_failed: bool,
    damaged: Collection[str] = (),
) -> Continue | NewPlan | Finished:
    """Return the campaign's next step, by the life cycle of its plans.

    `damaged` are shards that are known to be unmergeable.
    """
    held, broken = situation.held, frozenset(damaged)
    states = [PlanState(plan, situation.committed, held, broken) for plan in situation.plans]
    inputs = _inputs_hash(situation)
    step = next_step(
        states,
        inputs,
        again=again,
        retry_failed=retry_failed,
        last=situation.stored.last,
        unread=bool(situation.stored.damaged),
        anew=situation.campaign.update == "precision",
    )
    if isinstance(step, Finished) and may_measure_again(situation.plans, inputs):
        return second_look(step, doubted_places(situation), situation.stored.last)
    return step


def doubted_places(situation: Situation) -> Mapping[str, str]:
    """Return the cases that a single, suspect session measured, and the device or node."""
    stack, campaign, published = situation.stack, situation.campaign, situation.published
    if not published.shows(stack):
        return {}
    wanted = {
        record.case_id
        for source in situation.sources
        for record in source.records
        if campaign.operators is None or record.case.kernel_type in campaign.operators
    }
    return published.doubted_once(stack.version_path, wanted, cache=campaign.measure.cache)


def is_measured_again(situation: Situation, plan: Plan, head: Commit | None) -> bool:
    """Return whether another plan follows this one for the cases of suspect sessions.

    This plan is done and published in `head`.
    """
    plans = [*(p for p in situation.plans if p.number != plan.number), plan]
    if not may_measure_again(plans, plan.inputs_hash):
        return False
    published = Published.of(situation.published.store, head)
    return bool(doubted_places(replace(situation, published=published)))


def _inputs_hash(situation: Situation) -> str:
    planned = [source.planned for source in situation.sources]
    return inputs_hash(situation.campaign, situation.stack, planned, situation.op_mapping)


def next_round(
    situation: Situation, step: NewPlan, *, again: bool, retry_failed: bool
) -> PlannedRound:
    """Return the next plan of the campaign, not yet written."""
    answered = head_answers(situation, retry_failed=retry_failed)
    before = round_before(situation.plans, _inputs_hash(situation))
    request = PlanRequest(
        campaign=situation.campaign,
        number=step.number,
        head_commit=situation.head.number if situation.head else 0,
        round=step.round,
        stack=situation.stack,
        sources=tuple((source.planned, source.records) for source in situation.sources),
        answered=answered,
        op_mapping=situation.op_mapping,
        retry_failed=retry_failed,
        again=again,
        owed=_owed(situation, step, answered),
        again_s=AGAIN_SHARE * before.forecast.device_s if step.doubted and before else inf,
        before=before.forecast if before else None,
    )
    return make_plan(request, find=find)


def _owed(
    situation: Situation, step: NewPlan, answered: Collection[str]
) -> Mapping[str, str] | None:
    """Return the cases of a plan that only repeats damaged or suspect measurements.

    Each has the device or node that must not measure it. Return None for any other plan.
    """
    if step.doubted is not None:
        return step.doubted.places
    if step.mended is None:
        return None
    known = (record.case_id for source in situation.sources for record in source.records)
    is_open = step.mended.update != "missing-only"
    wanted = frozenset(case for case in known if is_open or case not in answered)
    return owed_cases(situation.published.store, step.mended, step.mends, wanted)


def head_answers(situation: Situation, *, retry_failed: bool = False) -> Mapping[str, HeadAnswer]:
    """Return the results of the sources' cases in the head for this stack, by case.

    A measurement that is held back, so that its version shows no duration, counts as a failure if
    failures are requested or if durations train a surface model.
    """
    stack, published = situation.stack, situation.published
    if not published.shows(stack):
        return {}
    wanted = {r.case_id: r.kernel_type for source in situation.sources for r in source.records}
    campaign = situation.campaign
    known = published.answers(stack.version_path, wanted, cache=campaign.measure.cache)
    counts_held_back = retry_failed or campaign.density is not None
    asks = counts_held_back or campaign.update == "precision"
    shown = published.intervals(stack.version_path, wanted) if asks else {}
    return {
        case: HeadAnswer(
            found.is_good and not (counts_held_back and _is_held_back(case, wanted[case], shown)),
            found.mean_us,
            shown.get(case),
            found.is_doubted,
        )
        for case, found in known.items()
    }


def _is_held_back(case_id: str, kernel_type: str, shown: Container[str]) -> bool:
    """Return whether a good measurement is not shown; collectives are shown elsewhere."""
    return case_id not in shown and not is_collective(kernel_type)


def write(store: Store, situation: Situation, planned: PlannedRound) -> None:
    """Write the round with the tables of its sources."""
    write_round(store, planned.plan, planned.shards, [source.table for source in situation.sources])


def _checked(op_mapping: str) -> str:
    check_op_mapping(op_mapping, path=OP_MAPPING)
    return op_mapping


def op_mapping_of(campaign: Campaign) -> str | None:
    """Return the text for the version: of the file that the campaign names, else of its trees."""
    path = campaign.op_mapping or _op_mapping_of_trees(campaign)
    if path is None:
        return None
    text = _unchanged(path)
    check_op_mapping(text, path=path)
    return text


def _op_mapping_of_trees(campaign: Campaign) -> Path | None:
    """Return the mapping of the tree sources if they agree; most have none or there is one tree."""
    folders = [source.path for source in campaign.sources if isinstance(source, TreeSource)]
    paths = [path for path in (folder / OP_MAPPING for folder in folders) if path.exists()]
    for other in paths[1:]:
        if _unchanged(other) != _unchanged(paths[0]):
            message = f"the op_mapping differs from {paths[0]}; set one op_mapping in the campaign"
            raise BadInput(message, path=other)
    return paths[0] if paths else None


def _unchanged(path: Path) -> str:
    """Return the text of a file unchanged, with its line ends and byte order mark."""
    try:
        return read_small_file(path).decode()
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"the op_mapping cannot be read: {reason}", path=path) from error
    except UnicodeDecodeError as error:
        raise BadInput("the op_mapping is not valid UTF-8", path=path) from error
