"""From a campaign to the plan that is measured next: a new one, or the one to continue."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.database.commits import Commit, find_head
from collector.database.layout import OP_MAPPING
from collector.database.op_mapping import check_op_mapping
from collector.database.published import HeldShards, Published
from collector.errors import BadInput
from collector.ops.registry import find
from collector.plan import Plan
from collector.stack import Stack
from collector.store.base import Store
from jobs.campaign import Campaign, TreeSource
from jobs.candidates import Answer
from jobs.lifecycle import Continue, Finished, NewPlan, PlanState, next_step
from jobs.planning import PlannedRound, PlanRequest, inputs_hash, make_plan
from jobs.rounds import committed_shards, read_plans, write_round
from jobs.sources import LoadedSource, load_sources
from jobs.target import resolve_stack


@dataclass(frozen=True, slots=True)
class Situation:
    """All that was found before anything is decided."""

    campaign: Campaign
    sources: tuple[LoadedSource, ...]
    stack: Stack
    op_mapping: str | None
    plans: tuple[Plan, ...]
    committed: frozenset[str]
    published: Published

    @property
    def head(self) -> Commit | None:
        """The database's newest commit, when it was looked at."""
        return self.published.commit


def survey(
    campaign: Campaign, store: Store, stack: Stack | None = None, op_mapping: str | None = None
) -> Situation:
    """Read the sources, the stack, the campaign's earlier plans and the database's head. `stack`
    is that of the machines that will measure, where they are not this one; `op_mapping` the text
    where it came with the campaign, not in a file."""
    stack = stack or resolve_stack(campaign)
    sources = load_sources(campaign, store)
    return Situation(
        campaign=campaign,
        sources=sources,
        stack=stack,
        op_mapping=_checked(op_mapping) if op_mapping else op_mapping_of(campaign),
        plans=tuple(read_plans(store, campaign.name)),
        committed=committed_shards(store, campaign.name),
        published=Published.of(store, find_head(store)),
    )


def decide(
    situation: Situation, *, again: bool, retry_failed: bool
) -> Continue | NewPlan | Finished:
    """What the campaign's next step is, by the life of its plans."""
    published = situation.published
    held = HeldShards(published.store, situation.campaign.name).at(published.commit)
    states = [
        PlanState(plan, situation.committed, _is_merged(plan, situation.committed, held))
        for plan in situation.plans
    ]
    planned = [source.planned for source in situation.sources]
    wanted = inputs_hash(situation.campaign, situation.stack, planned, situation.op_mapping)
    return next_step(states, wanted, again=again, retry_failed=retry_failed)


def _is_merged(plan: Plan, committed: frozenset[str], held: frozenset[str]) -> bool:
    """Whether the head holds every shard that was committed of a plan."""
    done = (shard.shard_id for shard in plan.shards if shard.shard_id in committed)
    return held.issuperset(done)


def next_round(
    situation: Situation, number: int, *, again: bool, retry_failed: bool
) -> PlannedRound:
    """The next plan of the campaign, not yet written."""
    request = PlanRequest(
        campaign=situation.campaign,
        number=number,
        head_commit=situation.head.number if situation.head else 0,
        round=str(number) if again or retry_failed else "",
        stack=situation.stack,
        sources=tuple((source.planned, source.records) for source in situation.sources),
        answered=head_answers(situation),
        op_mapping=situation.op_mapping,
        retry_failed=retry_failed,
        again=again,
    )
    return make_plan(request, find=find)


def head_answers(situation: Situation) -> Mapping[str, Answer]:
    """What the head answers of the sources' cases for this stack, by case."""
    stack, published = situation.stack, situation.published
    if not published.shows(stack):
        return {}
    wanted = (record.case_id for source in situation.sources for record in source.records)
    cache = situation.campaign.measure.cache
    known = published.answers(stack.version_path, wanted, cache=cache)
    return {case: Answer(found.is_good, found.mean_us) for case, found in known.items()}


def write(store: Store, situation: Situation, planned: PlannedRound) -> None:
    """Write the round with the tables of its sources."""
    write_round(store, planned.plan, planned.shards, [source.table for source in situation.sources])


def _checked(op_mapping: str) -> str:
    check_op_mapping(op_mapping, path=OP_MAPPING)
    return op_mapping


def op_mapping_of(campaign: Campaign) -> str | None:
    """The text that the version gets: of the file that the campaign names, else of its trees."""
    path = campaign.op_mapping or _op_mapping_of_trees(campaign)
    if path is None:
        return None
    text = _unchanged(path)
    check_op_mapping(text, path=path)
    return text


def _op_mapping_of_trees(campaign: Campaign) -> Path | None:
    """That of the tree sources, where they agree; most have none or come alone."""
    folders = [source.path for source in campaign.sources if isinstance(source, TreeSource)]
    paths = [path for path in (folder / OP_MAPPING for folder in folders) if path.exists()]
    for other in paths[1:]:
        if _unchanged(other) != _unchanged(paths[0]):
            message = f"it differs from {paths[0]}; name one op_mapping in the campaign"
            raise BadInput(message, path=other)
    return paths[0] if paths else None


def _unchanged(path: Path) -> str:
    """The text of a file with its line ends and its byte order mark: encoded, the same bytes."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"the op_mapping cannot be read: {reason}", path=path) from error
    except UnicodeDecodeError as error:
        raise BadInput("an op_mapping in UTF-8 is wanted", path=path) from error
