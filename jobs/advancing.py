"""From the life of a campaign's plans to the plan that is measured next.

`run` and `plan` advance a campaign in the same way: what older plans have committed is merged
first, so that the next plan leaves it out.
"""

import getpass
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collector.database.merge import Guard, MergeResult, merge
from collector.errors import BadInput
from collector.plan import Plan
from collector.store.base import Store
from jobs.candidates import Unsupported
from jobs.lifecycle import Continue, Finished, NewPlan
from jobs.preparing import Situation, decide, next_round, survey, write


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for beyond the campaign."""

    again: bool = False
    retry_failed: bool = False
    supersede_stack: bool = False


@dataclass(frozen=True, slots=True)
class Advanced:
    """The plan to measure. `news` says in a line how it came about; `unsupported` is what a new
    plan cannot measure."""

    situation: Situation
    plan: Plan
    news: str
    unsupported: tuple[Unsupported, ...] = ()


def advance(
    situation: Situation,
    store: Store,
    guard: Callable[[], Guard],
    wish: Wish,
    say: Callable[[str], None],
) -> Advanced:
    """The next plan, written where it is new. `guard` is asked for where something is merged.

    Raises BadInput where the version directory holds another stack, before anything is measured.
    """
    name = situation.campaign.name
    check_version(situation, supersede_stack=wish.supersede_stack)
    match decide(situation, again=wish.again, retry_failed=wish.retry_failed):
        case Finished(plan):
            return Advanced(situation, plan, f"plan {plan.number} is measured and merged already")
        case Continue(plan):
            return Advanced(situation, plan, f"continuing plan {plan.number}")
        case NewPlan(number, merge_first):
            own = [n for n in merge_first if _has_own_stack(situation, n)]
            for other in sorted(set(merge_first) - set(own)):
                say(
                    f"plan {other} was measured on another stack and stays unmerged; to publish "
                    f"it: opmeter merge {name} --plan {other} --supersede-stack"
                )
            if own:
                publish(store, name, own, guard(), wish, allow_missing=True)
                situation = survey(situation.campaign, store, situation.stack, situation.op_mapping)
            planned = next_round(
                situation, number, again=wish.again, retry_failed=wish.retry_failed
            )
            write(store, situation, planned)
            return Advanced(situation, planned.plan, f"plan {number}", planned.unsupported)


def publish(
    store: Store,
    campaign: str,
    numbers: Sequence[int],
    guard: Guard,
    wish: Wish,
    *,
    allow_missing: bool = False,
) -> MergeResult:
    """Merge these plans of a campaign in the name of whoever runs this."""
    return merge(
        store,
        [(campaign, number) for number in numbers],
        guard=guard,
        author=author(),
        supersede_stack=wish.supersede_stack,
        allow_missing=allow_missing,
    )


def check_version(situation: Situation, *, supersede_stack: bool) -> None:
    """Raise BadInput where the results could not be merged at the end."""
    stack, published = situation.stack, situation.published
    version = published.versions.get(stack.version_path)
    if version is None or supersede_stack or published.shows(stack):
        return
    raise BadInput(
        f"{stack.version_path} holds results of another stack (they differ in "
        f"{stack.differs_in(version.shown_stack)}); measure into another --root, or say "
        "--supersede-stack if this one shall show instead"
    )


def author() -> str:
    """Who publishes: `user@machine`, for people who read the log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        user = "unknown"
    return f"{user}@{platform.node()}"


def _has_own_stack(situation: Situation, number: int) -> bool:
    stacks = {plan.number: plan.stack.stack_id for plan in situation.plans}
    return stacks[number] == situation.stack.stack_id
