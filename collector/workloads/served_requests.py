"""Requests that a server is given, and what it made of them: TTFT, TPOT and throughput."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from collector.codec.errors import BadInput, file_errors
from collector.codec.numbers import number_of

_MOST_BYTES = 1 << 28
_MOST_TOKENS = 1 << 24


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


def read_requests(path: Path) -> tuple[ServedRequest, ...]:
    """Return the requests of a trace in their order of arrival: JSON Lines with `timestamp` in ms,
    `input_length` and `output_length` in tokens, as the traces of Mooncake have them.

    Raises BadInput for a line that is none."""
    with file_errors(path, "read"):
        if path.stat().st_size > _MOST_BYTES:
            raise BadInput(f"expected at most {_MOST_BYTES:,} bytes", path=path)
        lines = path.read_text().splitlines()
    found = [_request(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise BadInput("expected at least one request, got an empty trace", path=path)
    begin_ns = min(one.arrival_ns for one in found)
    found.sort(key=lambda one: one.arrival_ns)
    return tuple(
        ServedRequest(one.arrival_ns - begin_ns, one.prompt, one.produced) for one in found
    )


def _request(line: str, path: Path, number: int) -> ServedRequest:
    try:
        value = json.loads(line)
        at_ms = number_of(str(value["timestamp"]))
        prompt, produced = (_tokens(value[name]) for name in ("input_length", "output_length"))
    except (ValueError, TypeError, KeyError) as error:
        what = "expected an object with timestamp, input_length and output_length"
        raise BadInput(f"{what}, got {line[:60]!r}", path=path, line=number) from error
    return ServedRequest(round(at_ms * 1e6), prompt, produced)


def _tokens(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
        raise ValueError(value)
    return value


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


def serving_times(
    requests: Sequence[ServedRequest], tokens_ns: Sequence[Sequence[int]]
) -> ServingTimes:
    """Return the times of requests whose tokens were there at these times."""
    pairs = list(zip(requests, tokens_ns, strict=True))
    return ServingTimes(
        ttft_ms=tuple((times[0] - one.arrival_ns) / 1e6 for one, times in pairs),
        tpot_ms=tuple(
            (times[-1] - times[0]) / (len(times) - 1) / 1e6 for _, times in pairs if len(times) > 1
        ),
        tokens=sum(map(len, tokens_ns)),
        duration_s=max(times[-1] for times in tokens_ns) / 1e9,
    )
