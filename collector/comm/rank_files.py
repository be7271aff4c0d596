"""The files by which ranks and whoever watches them speak: a plan, journals, results, stacks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.comm.timing import RankTimes
from collector.replay.process import ProcessId

PLAN, RESULTS = "plan.json", "results.jsonl"


def journal_name(rank: int) -> str:
    return f"rank-{rank}.jsonl"


def stacks_name(rank: int) -> str:
    return f"rank-{rank}.stacks"


@dataclass(frozen=True, slots=True)
class RankState:
    """Where a rank is, by its own words: how many steps it took, and the one that it is in."""

    rank: int
    process: ProcessId | None
    steps: int
    step: str


@dataclass(frozen=True, slots=True)
class CaseSeen:
    """What one round saw of a case of the plan, `case` by its place there."""

    round: int
    case: int
    ranks: tuple[RankTimes, ...]
    left_out: str
    wrong: tuple[int, ...]


def rank_states(folder: Path) -> list[RankState]:
    """The ranks of this node that have begun, in order of their names."""
    return [_state(path) for path in sorted(folder.glob("rank-*.jsonl"))]


def read_results(folder: Path) -> list[CaseSeen]:
    """What rank 0 wrote of all cases; none where it never came so far."""
    path = folder / RESULTS
    lines = path.read_text().splitlines() if path.exists() else []
    return [_seen(json.loads(line)) for line in lines]


def _seen(read: dict[str, object]) -> CaseSeen:
    ranks = read["ranks"]
    assert isinstance(ranks, list)
    times = tuple(RankTimes(rank, tuple(starts), tuple(took)) for rank, starts, took in ranks)
    wrong = read["wrong"]
    assert isinstance(wrong, list)
    return CaseSeen(
        int(str(read["round"])), int(str(read["case"])), times, str(read["left_out"]), tuple(wrong)
    )


def _state(path: Path) -> RankState:
    lines = list(_whole_lines(path))
    started = lines[0].get("process") if lines else None
    process = ProcessId(*started) if isinstance(started, list) else None
    step = str(lines[-1].get("step", "")) if lines else ""
    return RankState(int(path.stem.removeprefix("rank-")), process, len(lines), step)


def _whole_lines(path: Path) -> Iterator[dict[str, object]]:
    """The lines that are written to their end."""
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
