"""The stored plans of a campaign, and which of them cannot be read.

A damaged object stops nothing else: it is reported in a line that names its key, and its cases are
planned again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial

from collector.codec.errors import BadInput, DamagedObject, stored
from collector.model import keys
from collector.model.plan import Plan, plan_from_json
from collector.store.base import Store


@dataclass(frozen=True, slots=True, order=True)
class MergedPlan:
    """A plan as a version names it."""

    campaign: str
    number: int
    plan_hash: str

    @classmethod
    def of(cls, plan: Plan) -> "MergedPlan":
        return cls(plan.campaign, plan.number, plan.plan_hash)


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """A stored object of a shard that cannot be read; of the whole plan if `shard` is empty.
    `reason` is a line that names the key."""

    campaign: str
    plan: int
    shard: str
    reason: str

    def __str__(self) -> str:
        return f"damaged     {self._of}: {self.reason}"

    @property
    def short(self) -> str:
        """Return what is damaged and the key, without the reason."""
        return f"{self._of} ({self.key})"

    @property
    def key(self) -> str:
        return self.reason.partition(": ")[0]

    @property
    def _of(self) -> str:
        return f"shard {self.shard} of plan {self.plan}" if self.shard else f"plan {self.plan}"


def read_plan(store: Store, campaign: str, number: int) -> Plan:
    """Return one plan. Raises NotFound if there is none, and DamagedObject, which names the key, if
    it is invalid."""
    key = keys.plan(campaign, number)
    with stored():
        plan = plan_from_json(store.get(key), key=key)
    if (plan.campaign, plan.number) != (campaign, number):
        raise DamagedObject(
            f"expected plan {number} of {campaign}, got plan {plan.number} of {plan.campaign}",
            path=key,
        )
    return plan


def assigned_plan(store: Store, campaign: str, number: int, plan_hash: str) -> Plan:
    """Return the plan that the scheduler of its shards has read. Raises the errors of read_plan,
    and DamagedObject for another plan."""
    plan = read_plan(store, campaign, number)
    if plan.plan_hash != plan_hash:
        what = f"expected the assigned plan hash {plan_hash}, got {plan.plan_hash}"
        raise DamagedObject(what, path=keys.plan(campaign, number))
    return plan


def plan_or_damage(store: Store, campaign: str, number: int) -> Plan | Damage:
    """Return a plan, or its damage. Raises NotFound if there is none."""
    try:
        return read_plan(store, campaign, number)
    except BadInput as error:
        return Damage(campaign, number, "", str(error))


def changed(plan: Plan, merged: Collection[MergedPlan]) -> Damage | None:
    """Return the damage of a plan if versions were merged from another plan with its number; else
    None."""
    hashes = {
        one.plan_hash
        for one in merged
        if (one.campaign, one.number) == (plan.campaign, plan.number)
    }
    if not hashes or plan.plan_hash in hashes:
        return None
    key = keys.plan(plan.campaign, plan.number)
    what = f"{key}: expected the merged plan hash {min(hashes)}, got {plan.plan_hash}"
    return Damage(
        plan.campaign, plan.number, "", f"{what}: the plan was changed after it was written"
    )


def plan_reader(store: Store, campaign: str) -> Callable[[int], Plan]:
    """Return a function that reads the plans of a campaign by number, each once: many of thousands
    of shards may be of another plan. The function raises the errors of read_plan."""
    return cache(partial(read_plan, store, campaign))
