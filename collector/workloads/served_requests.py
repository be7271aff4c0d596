"""Requests that a server is given, and what it made of them: TTFT, TPOT and throughput."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request: when it arrives, and the tokens of its prompt and those that are produced."""

    arrival_ns: int
    prompt: int
    produced: int


def arriving_requests(
    count: int, per_s: float, prompt: int, produced: int, seed: int
) -> tuple[ServedRequest, ...]:
    """Return requests that arrive independently of each other (a Poisson process), the first one at
    the begin."""
    random, at_s, found = Random(seed), 0.0, []
    for _ in range(count):
        found.append(ServedRequest(round(at_s * 1e9), prompt, produced))
        at_s += random.expovariate(per_s)
    return tuple(found)


def at_rate(requests: Sequence[ServedRequest], per_s: float) -> tuple[ServedRequest, ...]:
    """Return requests whose arrivals have the same pattern, faster or slower: this mean rate."""
    longest_ns = max(one.arrival_ns for one in requests)
    factor = (len(requests) - 1) * 1e9 / per_s / longest_ns if longest_ns else 1.0
    return tuple(replace(one, arrival_ns=round(one.arrival_ns * factor)) for one in requests)


@dataclass(frozen=True, slots=True)
class ServingTimes:
    """What requests experienced: of each TTFT, and TPOT where it has several tokens, in ms."""

    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    tokens: int
    duration_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.duration_s if self.duration_s else 0.0


def serving_times(begins_ns: Sequence[int], tokens_ns: Sequence[Sequence[int]]) -> ServingTimes:
    """Return the times of requests that were sent, and whose tokens were there, at these times."""
    pairs = list(zip(begins_ns, tokens_ns, strict=True))
    return ServingTimes(
        ttft_ms=tuple((times[0] - begin_ns) / 1e6 for begin_ns, times in pairs),
        tpot_ms=tuple(
            (times[-1] - times[0]) / (len(times) - 1) / 1e6 for _, times in pairs if len(times) > 1
        ),
        tokens=sum(map(len, tokens_ns)),
        duration_s=max(times[-1] for times in tokens_ns) / 1e9,
    )
