"""A campaign's rounds in a store: its plans, what each has committed, and writing the next one.

The plan is written last, so that a plan that exists has its sources and shards.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from collector import keys
from collector.canonical import sha256_hex
from collector.errors import AlreadyExists, BadInput, NotFound
from collector.plan import Plan, plan_from_json, plan_to_json
from collector.store.base import Store, create_once
from jobs.nodes import Strikes, strikes_from_json

_WRITERS = 8


def read_plan(store: Store, campaign: str, number: int) -> Plan:
    """One plan; NotFound where there is none."""
    key = keys.plan(campaign, number)
    return plan_from_json(store.get(key), key=key)


def plan_numbers(store: Store, campaign: str) -> list[int]:
    """Which plans a campaign has, oldest first."""
    names = (info.key.rsplit("/", 1)[1] for info in store.list(keys.plans(campaign)))
    return sorted(int(name.removesuffix(".json")) for name in names)


def read_plans(store: Store, campaign: str) -> list[Plan]:
    """Every plan of a campaign, oldest first."""
    return [read_plan(store, campaign, number) for number in plan_numbers(store, campaign)]


def committed_shards(store: Store, campaign: str) -> frozenset[str]:
    """The shards that somebody has committed, over all plans."""
    listing = store.list(keys.committed_shards(campaign))
    return frozenset(info.key.rsplit("/", 1)[1].removesuffix(".json") for info in listing)


def stored_strikes(store: Store, campaign: str) -> Strikes:
    """All that is held against nodes in a campaign."""
    key = keys.nodes(campaign)
    try:
        return strikes_from_json(store.get(key), key=key)
    except NotFound:
        return Strikes()


def write_round(
    store: Store, plan: Plan, shards: Mapping[str, bytes], sources: Iterable[bytes]
) -> None:
    """Write a plan with all it names. Writing the same round again is silent.

    Raises BadInput where another run has just written another plan of this number.
    """
    tables = [(keys.source(plan.campaign, sha256_hex(table)), table) for table in sources]
    tables += [(keys.shard(plan.campaign, shard), table) for shard, table in shards.items()]
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda entry: create_once(store, *entry), tables))
    try:
        create_once(store, keys.plan(plan.campaign, plan.number), plan_to_json(plan))
    except AlreadyExists as error:
        raise BadInput(
            f"plan {plan.number} of campaign {plan.campaign} was just written by another run; "
            "start again to continue that one"
        ) from error
