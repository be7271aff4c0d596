"""Which requests list the attempts at open shards."""

import pytest

from collector.model import keys
from collector.store.in_memory import MemoryStore
from jobs.status.follower import READERS, keys_of_attempts

pytestmark = pytest.mark.fast

KNOWN = 125  # shards of the campaign, whose keys are one page of a thousand


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def list(self, prefix, **more):
        self.listed.append(prefix)
        return super().list(prefix, **more)


@pytest.mark.parametrize(("count", "requests"), [(READERS, READERS), (READERS + 1, 1)])
def test_few_shards_are_listed_one_by_one_and_many_at_once(count: int, requests: int):
    store = CountingStore()
    shards = [f"s{number:03}" for number in range(count)]
    for shard in shards:
        store.put(f"{keys.attempts('small', shard)}attempt-1/part-0.csv", b"")
    found = keys_of_attempts(store, "small", shards, KNOWN)
    assert {shard: len(listed) for shard, listed in found.items()} == dict.fromkeys(shards, 1)
    assert len(store.listed) == requests
