"""Waves in a store: stray objects next to them are ignored, and a damaged wave is written again."""

from dataclasses import replace

import pytest

from collector.model import keys
from collector.store.base import create_named
from collector.store.in_memory import MemoryStore
from jobs.objects.waves import Wave, wave_to_json
from jobs.planning import stored_plans
from jobs.planning.stored_plans import KnownWaves, campaigns, find_waves
from tests.unit.collector.database.wrapped_stores import CountingStore

pytestmark = pytest.mark.fast

WAVE = Wave("made", 1, "f" * 16, 0, (("a",), ("b",)))
OTHER = replace(WAVE, serial=1)


def key_of(wave: Wave) -> str:
    return keys.wave("made", wave.wave_hash)


def write(store: MemoryStore, *waves: Wave) -> None:
    for wave in waves:
        store.create(key_of(wave), wave_to_json(wave))


def test_strays_are_not_waves_and_are_not_read() -> None:
    store = MemoryStore()
    write(store, WAVE)
    for name in (".DS_Store", f"{WAVE.wave_hash}.json~", "x/y.json", "1.txt"):
        store.put(keys.waves("made") + name, b"mine")
    counting = CountingStore(store)
    assert list(find_waves(counting, "made", {})) == [WAVE]
    assert [key for verb, key in counting.calls if verb == "get"] == [key_of(WAVE)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"campaign":1e999}',
        wave_to_json(OTHER),
        wave_to_json(replace(OTHER, campaign="other")),
    ],
)
def test_damaged_wave_is_reported_once_ignored_and_rewritten(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store, known = MemoryStore(), dict[str, Wave | None]()
    write(store, OTHER)
    store.put(key_of(WAVE), data)
    for _ in range(3):
        assert list(find_waves(store, "made", known)) == [OTHER]
    (warning,) = [one for one in caplog.records if one.name == stored_plans.__name__]
    assert key_of(WAVE) in warning.getMessage()
    create_named(store, key_of(WAVE), wave_to_json(WAVE))
    forgotten: KnownWaves = {}
    assert set(find_waves(store, "made", forgotten)) == {WAVE, OTHER}


def test_campaigns_are_those_with_a_valid_name_and_a_plan() -> None:
    store = MemoryStore()
    for key in (
        *("campaigns/.DS_Store", "campaigns/Made!/plans/1.json", "campaigns/made/plans/1.json"),
        *("campaigns/other/plans/.DS_Store", "campaigns/third/plans/1.json~"),
    ):
        store.put(key, b"")
    assert campaigns(store) == ["made"]
