"""Which plans' commits are due to be published, and publishing them as whoever runs this."""

import getpass
import platform
from collections.abc import Callable, Collection, Sequence

from collector.database.merge import Guard, MergeResult, merge_plans
from collector.plan import Plan
from collector.store.base import Store
from jobs.campaign.run_options import RunOptions
from jobs.planning.lifecycle import Continue, Finished, NewPlan
from jobs.planning.situation import Situation


def own_plans(situation: Situation, plan: Plan) -> list[int]:
    """The plans that can be merged beside the one in hand: those of its stack. Of what the head
    holds already a merge reads nothing."""
    numbers = {other.number for other in situation.plans}
    return sorted({*own_numbers(situation, numbers), plan.number})


def own_numbers(situation: Situation, numbers: Collection[int]) -> list[int]:
    """Those of the plans that were measured on the campaign's stack, in order."""
    stack_id = situation.stack.stack_id
    own = (plan.number for plan in situation.plans if plan.stack.stack_id == stack_id)
    return sorted(number for number in own if number in numbers)


def to_merge(
    situation: Situation, step: Continue | NewPlan | Finished, say: Callable[[str], None]
) -> list[int]:
    """What has to be merged before it is known how to go on: a plan that still lacks shards is
    merged when it has them, with all that came late."""
    match step:
        case NewPlan(_, numbers) | Finished(_, numbers):
            wanted = set(numbers)
        case Continue(plan, numbers):
            is_open = bool(plan.beyond(situation.committed))
            wanted = set() if is_open else {*numbers, plan.number}
    own = own_numbers(situation, wanted)
    for other in sorted(wanted.difference(own)):
        say(
            f"plan {other} was measured on another stack and is not merged; to publish it: "
            f"opmeter merge {situation.campaign.name} --plan {other} --supersede-stack"
        )
    return own


def publish(
    store: Store,
    campaign: str,
    numbers: Sequence[int],
    guard: Guard,
    options: RunOptions,
) -> MergeResult:
    """Merge what these plans of a campaign have committed, in the name of whoever runs this."""
    return merge_plans(
        store,
        [(campaign, number) for number in numbers],
        guard=guard,
        author=author(),
        supersede_stack=options.supersede_stack,
        allow_missing=True,
    )


def author() -> str:
    """Who publishes: `user@machine`, for people who read the log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        user = "unknown"
    return f"{user}@{platform.node()}"
