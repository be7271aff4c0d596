"""Reads the objects that attempts have left in a store."""

from collector.model import keys
from collector.model.measurement import Measurement
from collector.store.base import Store
from collector.worker.attempt import read_part


def measured(store: Store, campaign: str = "c", shard: str = "s1") -> list[Measurement]:
    """Every measurement of every attempt, ordered by key."""
    listed = [info.key for info in store.list(keys.attempts(campaign, shard))]
    parts = [key for key in listed if key.rsplit("/", 1)[1].startswith("part-")]
    return [m for key in parts for m in read_part(store.get(key), key=key)]
