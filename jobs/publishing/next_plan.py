"""The next plan to measure, derived from the state of a campaign's plans.

`run` and `plan` advance a campaign in the same way: the commits of older plans are merged first, so
that the next plan excludes them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from collector.codec.errors import BadInput
from collector.database.merge import Guard
from collector.database.state import rank_of
from collector.model.plan import Plan
from collector.store.base import Store
from jobs.campaign.campaign_file import RunOptions
from jobs.planning.damage import Told
from jobs.planning.lifecycle import Continue, Doubted, Finished, NewPlan
from jobs.planning.plan_making import PlannedRound
from jobs.planning.situation import Situation, choose_step, next_round, once_more, write
from jobs.publishing.due_merges import publish, to_merge


@dataclass(frozen=True, slots=True)
class Advanced:
    """The plan to measure.

    Attributes:
        news: one line that describes how the plan was determined.
        is_finished: nothing is left to do.
        broken: shards of the plan that were damaged in every measurement.
        told: all damage that was found.
    """

    situation: Situation
    plan: Plan
    news: str
    is_finished: bool = False
    broken: tuple[str, ...] = ()
    told: Told = Told((), ())


def advance(
    situation: Situation,
    store: Store,
    guard: Callable[[], Guard],
    options: RunOptions,
    say: Callable[[str], None],
) -> Advanced:
    """Return the next plan, written if it is new.

    Commits of other plans that can be merged are merged before. `guard` is called before the first
    write: by then all input is read and validated as far as possible. Unreadable parts are
    reported.

    Raises:
        BadInput: the version directory contains another stack; before anything is measured.
    """
    check_version(situation, supersede_stack=options.supersede_stack)
    found = list(situation.stored.damaged)
    step = choose_step(situation, again=options.again, retry_failed=options.retry_failed)
    if not isinstance(step, NewPlan):
        check_rank(situation, step.plan)
    if due := to_merge(situation, step, say):
        name = situation.campaign.name
        merged = publish(store, name, due, guard(), options)
        found += merged.damaged
        situation = once_more(situation, store)
        step = choose_step(
            situation,
            again=options.again,
            retry_failed=options.retry_failed,
            damaged=[damage.shard for damage in merged.damaged],
        )
    told = Told.of(found, plan_in_hand(situation, step))
    for line in told.lines():
        say(line)
    return replace(settled(situation, step, store, options, accept=guard), told=told)


def plan_in_hand(situation: Situation, step: Continue | NewPlan | Finished) -> int:
    """Return the number of the plan that a step continues; it contains what older plans lack."""
    match step:
        case Continue(plan) | Finished(plan) | NewPlan(mended=Plan() as plan):
            return plan.number
        case NewPlan(doubted=Doubted(plan)):
            return plan.number
        case _:
            return situation.stored.newest


def settled(
    situation: Situation,
    step: Continue | NewPlan | Finished,
    store: Store,
    options: RunOptions,
    accept: Callable[[], object] = lambda: None,
) -> Advanced:
    """Return the plan of a step, written if it is new.

    `accept` is called before the write, and raises if the store must not be written.
    """
    advanced, planned = intended(situation, step, options)
    if planned is not None:
        accept()
        write(store, situation, planned)
    return advanced


def intended(
    situation: Situation, step: Continue | NewPlan | Finished, options: RunOptions
) -> tuple[Advanced, PlannedRound | None]:
    """Return the plan of a step, and the round to write if the plan is new."""
    match step:
        case Finished(plan, _, broken):
            news = f"plan {plan.number} is already measured and merged"
            return Advanced(situation, plan, news, is_finished=True, broken=broken), None
        case Continue(plan):
            return Advanced(situation, plan, f"continuing plan {plan.number}"), None
        case NewPlan(number, _, _, mended, _, doubted):
            planned = next_round(
                situation, step, again=options.again, retry_failed=options.retry_failed
            )
            news = f"plan {number}"
            if doubted is not None and not planned.plan.shards:
                news = f"plan {doubted.plan.number} is measured and merged"
                news += "; measuring the results of suspect sessions again would take too long"
                return Advanced(situation, doubted.plan, news, is_finished=True), None
            if doubted is not None:
                news += f", for results of suspect sessions of plan {doubted.plan.number}"
            if mended is not None:
                news += f", for damaged results of plan {mended.number}"
            return Advanced(situation, planned.plan, news), planned


def check_version(situation: Situation, *, supersede_stack: bool) -> None:
    """Raise BadInput if the results could not be merged at the end."""
    stack, published = situation.stack, situation.published
    version = published.versions.get(stack.version_path)
    if version is None or supersede_stack or published.shows(stack):
        return
    raise BadInput(
        f"{stack.version_path} holds results of another stack (they differ in "
        f"{stack.differs_in(version.shown_stack)}); measure into another --root, or pass "
        "--supersede-stack to show this stack instead"
    )


def check_rank(situation: Situation, plan: Plan) -> None:
    """Raise BadInput if a version shows another stack whatever this plan measures.

    That is so if this plan is older than the plan whose stack the version shows.
    """
    version = situation.published.versions.get(plan.stack.version_path)
    if (
        version is None
        or situation.published.shows(plan.stack)
        or rank_of(plan) > version.stack.rank
    ):
        return
    raise BadInput(
        f"--supersede-stack would change nothing: {plan.stack.version_path} shows another stack "
        f"(they differ in {plan.stack.differs_in(version.shown_stack)})"
        ", in a plan newer than plan "
        f"{plan.number}; pass --again too, which makes a new plan"
    )
