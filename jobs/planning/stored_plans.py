"""What a store contains of a campaign: its plans, committed shards, failures of nodes and waves."""

import logging
from collections.abc import Callable, Collection, Iterator, MutableMapping
from dataclasses import dataclass, replace
from functools import partial

from collector.codec.errors import BadInput, NotFound
from collector.database.plans import Damage, MergedPlan, changed, plan_or_damage
from collector.model import keys
from collector.model.plan import Plan
from collector.store.base import Store
from jobs.objects.waves import NodeFailures, Wave, node_failures_from_json, wave_from_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredPlans:
    """The readable plans of a campaign, oldest first, and the damage found for the others.

    `last` is the greatest number that is taken; 0 if there is none."""

    plans: tuple[Plan, ...]
    damaged: tuple[Damage, ...]
    last: int

    @property
    def newest(self) -> int:
        """Return the number of the newest plan, readable or not; 0 without any."""
        return max([*(p.number for p in self.plans), *(d.plan for d in self.damaged)], default=0)


def plan_numbers(store: Store, campaign: str) -> list[int]:
    """Return the numbers of a campaign's plans, oldest first.

    Plans are numbered without a gap: an object after a free number that is not a plan is a stray.
    """
    listing = store.list(keys.plans(campaign))
    found = (keys.number_in_key(info.key, partial(keys.plan, campaign)) for info in listing)
    taken = sorted(number for number in found if number)
    first_free = next(n for n, number in enumerate([*taken, 0], start=1) if n != number)
    return [n for n in taken if n < first_free or _is_plan(store, campaign, n)]


def _is_plan(store: Store, campaign: str, number: int) -> bool:
    try:
        return isinstance(plan_or_damage(store, campaign, number), Plan)
    except NotFound:
        return False


def find_plans(
    store: Store, campaign: str, known: MutableMapping[str, Plan | Damage] | None = None
) -> StoredPlans:
    """Return every plan of a campaign that can be read.

    Plans whose keys are `known` are not read again; plans that are read are added there."""
    known = {} if known is None else known
    numbers = plan_numbers(store, campaign)
    for number in numbers:
        key = keys.plan(campaign, number)
        if key not in known:
            known[key] = plan_or_damage(store, campaign, number)
    found = [known[keys.plan(campaign, number)] for number in numbers]
    return StoredPlans(
        tuple(one for one in found if isinstance(one, Plan)),
        tuple(one for one in found if isinstance(one, Damage)),
        max(numbers, default=0),
    )


def unchanged(
    found: StoredPlans, merged: Collection[MergedPlan], held: Callable[[], Collection[str]]
) -> StoredPlans:
    """Return the plans without those that differ from the plans that the head has merged.

    A plan with all its shards in the head stays: none of its objects is required any more. A number
    that was merged is taken, even if its plan is gone."""
    found = replace(found, last=max([found.last, *(plan.number for plan in merged)]))
    others = {plan: damage for plan in found.plans if (damage := changed(plan, merged)) is not None}
    if not others:
        return found
    known = held()
    wrong = [plan for plan in others if plan.beyond(known)]
    return replace(
        found,
        plans=tuple(plan for plan in found.plans if plan not in wrong),
        damaged=tuple(sorted([*found.damaged, *(others[plan] for plan in wrong)])),
    )


def read_plans(store: Store, campaign: str) -> list[Plan]:
    """Return every plan of a campaign that can be read, oldest first."""
    return list(find_plans(store, campaign).plans)


def has_plans(store: Store, campaign: str) -> bool:
    return any(True for _ in store.list(keys.plans(campaign)))


def campaigns(store: Store) -> list[str]:
    """Return every campaign that has a plan in the store. Listing a large store takes long."""
    found = (i.key.split("/") for i in store.list(keys.CAMPAIGNS) if keys.is_ours(i.key))
    return sorted({campaign for _, campaign, kind, *_ in found if kind == "plans"})


def no_campaign(store: Store, name: str) -> BadInput:
    known = ", ".join(campaigns(store)) or "none"
    return BadInput(f"no campaign {name!r} at {store.url}; known campaigns: {known}")


def committed_shards(store: Store, campaign: str) -> frozenset[str]:
    """Return the committed shards of all plans."""
    listing = store.list(keys.committed_prefix(campaign))
    found = (keys.name_of(info.key, partial(keys.committed, campaign)) for info in listing)
    return frozenset(name for name in found if name is not None)


def known_node_failures(store: Store, campaign: str) -> NodeFailures:
    """Return the failures counted against nodes, or none if they cannot be read.

    The next failure is then written in place of the unreadable object."""
    try:
        return stored_node_failures(store, campaign)
    except BadInput as error:
        logger.warning("%s", error)
        return NodeFailures()


def stored_node_failures(store: Store, campaign: str) -> NodeFailures:
    """Return the failures counted against nodes in a campaign.

    Raise BadInput, naming the key, for an object that has another content."""
    key = keys.nodes(campaign)
    try:
        return node_failures_from_json(store.get(key), key=key)
    except NotFound:
        return NodeFailures()


# The waves of a campaign in a store.
#
# A wave's key is the hash of its content. An object with other content is no wave: it is reported,
# and written again with the next wave of that hash.

KnownWaves = MutableMapping[str, Wave | None]  # by key; None for an object that is no wave


def find_waves(store: Store, campaign: str, known: KnownWaves) -> Iterator[Wave]:
    """Yield every wave of a campaign; objects in `known` are not read again."""
    for info in store.list(keys.waves(campaign)):
        if info.key not in known:
            known[info.key] = _read(store, campaign, info.key)
        if (wave := known[info.key]) is not None:
            yield wave


def _read(store: Store, campaign: str, key: str) -> Wave | None:
    name = keys.name_of(key, partial(keys.wave, campaign))
    if name is None:
        return None
    try:
        wave = wave_from_json(store.get(key), key=key)
        if (wave.campaign, wave.wave_hash) != (campaign, name):
            raise BadInput("the wave does not match the hash in its name", path=key)
    except (BadInput, NotFound) as error:
        logger.warning("skipping a wave that cannot be read: %s", error)
        return None
    return wave
