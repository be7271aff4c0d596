"""How often a distant store that checks and then writes is detected: simulated, with its own
clock."""

import random
import re
from collections.abc import Callable

import pytest

from collector import environment
from collector.codec.errors import AlreadyExists
from collector.environment import Environment
from collector.store.in_memory import MemoryStore
from collector.store.probe import Probe, RaceResult, Together, Write, probe_store

Chance = random.Random
WAY_S = 0.05  # at least, for the round trip


def normal(spread_s: float) -> Callable[[Chance], float]:
    return lambda chance: WAY_S + abs(chance.gauss(3 * spread_s, spread_s))


def with_a_tail(mean_s: float) -> Callable[[Chance], float]:
    return lambda chance: WAY_S + chance.expovariate(1 / mean_s)


def even(range_s: float) -> Callable[[Chance], float]:
    return lambda chance: WAY_S + chance.uniform(0.0, range_s)


class Simulated(Environment):
    """A clock that advances only during waits; one thread runs at a time."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def map_concurrently(self, call, items, threads):  # type: ignore[no-untyped-def]
        start_s, ends_s, found = self.now_s, [self.now_s], []
        for item in items:
            self.now_s = start_s
            found.append(call(item))
            ends_s.append(self.now_s)
        self.now_s = start_s + (max(ends_s) - start_s) * -(-len(found) // threads)
        return found


class ConcurrentWriters(Together):
    """Writers that start at the same time of the clock, and end with their reply."""

    def __init__(self, clock: Simulated):
        self._clock = clock

    def race(self, write: Write, writers: int) -> list[RaceResult]:
        start_s, finished = self._clock.now_s, []
        for number in range(writers):
            self._clock.now_s = start_s
            finished.append(RaceResult(write(number), self._clock.now_s))
        self._clock.now_s = max(finish.at_s for finish in finished)
        return finished

    def end(self) -> None:
        pass


class Far(MemoryStore):
    """A distant store. All requests that arrive within `window_s` of the first find no object, and
    all of them win. Each writer sends a little after the one before: one machine starts them."""

    def __init__(
        self, clock: Simulated, window_s: float, way: Callable[[Chance], float], seed: int
    ):
        super().__init__()
        self._clock, self._window_s, self._way = clock, window_s, way
        self._chance = random.Random(seed)
        self._arrivals: dict[str, list[float]] = {}
        self._actual: dict[str, int] = {}

    def create(self, key: str, data: bytes) -> None:
        arrivals = self._arrivals.setdefault(key, self._drawn())
        number = self._actual[key] = self._actual.get(key, -1) + 1
        later_s = max(arrivals) + 1
        arrived_s = arrivals[number] if number < len(arrivals) else later_s
        there_s = arrived_s if arrived_s < later_s else self._way(self._chance)
        self._clock.now_s += there_s + self._way(self._chance)
        if arrived_s > min(arrivals) + self._window_s:
            raise AlreadyExists(key)
        self.put(key, data)

    def _drawn(self) -> list[float]:
        turns = self._chance.sample(range(16), 16)
        return [0.001 * turn + self._way(self._chance) for turn in turns]


def request(window_s: float, way: Callable[[Chance], float], seed: int) -> tuple[Probe, float]:
    """Return the result of the probe, and its duration by the simulated clock."""
    clock = Simulated()
    with environment.use_environment(clock):
        store = Far(clock, window_s, way, seed)
        return probe_store(store, racers=lambda writers: ConcurrentWriters(clock)), clock.now_s


@pytest.mark.parametrize(
    ("name", "way", "least"),
    [
        ("even over 10 ms", even(0.010), 0.99),
        ("even over 100 ms", even(0.100), 0.99),
        ("normal, 2 ms", normal(0.002), 0.99),
        ("normal, 10 ms", normal(0.010), 0.99),
        ("a tail of 5 ms", with_a_tail(0.005), 0.99),
        ("a tail of 30 ms", with_a_tail(0.030), 0.99),
        ("even over 300 ms, more than it can do", even(0.300), 0.7),
    ],
)
def test_distant_store_with_a_race_window_of_1_ms_is_detected(
    name: str, way: Callable[[Chance], float], least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [request(0.001, way, seed) for seed in range(300)]
    caught = sum(not answer.create_only for answer, _ in answers) / len(answers)
    missed = [answer.message for answer, _ in answers if answer.create_only]
    with capsys.disabled():
        print(f"\n  {name}: caught {caught:.3f}", missed[:1], end="")
    assert caught >= least


@pytest.mark.parametrize("way", [even(0.010), even(0.100), even(0.300), even(2.0)])
def test_honest_store_passes_at_any_distance_in_bounded_time(
    way: Callable[[Chance], float],
) -> None:
    for seed in range(30):
        answer, took_s = request(0.0, way, seed)
        assert answer.create_only
        (races,) = re.findall(r"\b(\d+) races\b", answer.message)
        assert 3 <= int(races) <= 80
        assert took_s < 20 + 5 + 10 * 4  # one race more than the limit, and a read after each


def test_message_has_the_smallest_detectable_race_window() -> None:
    near, far = (request(0.0, even(range_s), 1)[0].message for range_s in (0.010, 2.0))
    (near_ms,), (far_ms,) = (re.findall(r"\b(\d+) ms\b", words) for words in (near, far))
    assert near_ms == "1" and int(far_ms) > 1
