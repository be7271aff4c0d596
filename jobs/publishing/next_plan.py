"""From the life of a campaign's plans to the plan that is measured next.

`run` and `plan` advance a campaign in the same way: what older plans have committed is merged
first, so that the next plan leaves it out.
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
    """The plan to measure. `news` says in a line how it came about. With `is_finished` nothing is
    left to do; `broken` are shards of it that were damaged as often as they were measured; `told`
    is all that was found damaged."""

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
    """The next plan, written where it is new. What is committed of others and can be merged is
    merged before. `guard` is asked for before the first write: all input is read and accepted by
    then, as far as it can be. What cannot be read is said.

    Raises BadInput where the version directory holds another stack, before anything is measured.
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
    """The number of the plan that a step goes on from: what older ones lack is in it."""
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
    """The plan that a step is about, written where it is new; `accept` is called before that, and
    raises where the store is not to be written to."""
    advanced, planned = intended(situation, step, options)
    if planned is not None:
        accept()
        write(store, situation, planned)
    return advanced


def intended(
    situation: Situation, step: Continue | NewPlan | Finished, options: RunOptions
) -> tuple[Advanced, PlannedRound | None]:
    """The plan that a step is about, and the round that is to be written where it is new."""
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
    """Raise BadInput where the results could not be merged at the end."""
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
    """Raise BadInput where a version shows another stack whatever comes of this plan, because it
    was made before the one that shows."""
    version = situation.published.versions.get(plan.stack.version_path)
    if (
        version is None
        or situation.published.shows(plan.stack)
        or rank_of(plan) > version.stack.rank
    ):
        return
    raise BadInput(
        f"--supersede-stack would change nothing: {plan.stack.version_path} shows another stack "
        f"(they differ in {plan.stack.differs_in(version.shown_stack)}) "
        ", in a plan newer than plan "
        f"{plan.number}; pass --again too, which makes a new plan"
    )
