"""The files by which ranks and whoever watches them speak: a plan, journals, results, stacks."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from collector.comm.timing import RankTimes
from collector.ranks.collective import Collective
from collector.replay.process import ProcessId

PLAN, RESULTS = "plan.json", "results.jsonl"
_STEPS_TOGETHER = 3  # of a rank's journal: joining the others, comparing plans, a first message
TOO_LARGE = "too large for the"  # how the reason of a case begins that no rank has the memory for


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
    """What one round saw of a case of the plan, `case` by its place there. `extra` is a size that
    the plan does not hold, and has a place behind them. Rounds beyond the plan's are of jumps."""

    round: int
    case: int
    ranks: tuple[RankTimes, ...]
    left_out: str
    wrong: tuple[int, ...]
    extra: Collective | None = None
    identity: str = ""


def wrong_result(rounds: Iterable[CaseSeen]) -> str:
    """Whose result of a case was not what it must be, in words; empty where all were right."""
    ranks = sorted({rank for one in rounds for rank in one.wrong})
    return f"the result of rank {', '.join(map(str, ranks))} is wrong" if ranks else ""


def rank_states(folder: Path) -> list[RankState]:
    """The ranks of this node that have begun, in order of their names."""
    return [_state(path) for path in sorted(folder.glob("rank-*.jsonl"))]


def have_met(folder: Path) -> bool:
    """Whether the ranks came together. From there on it may be the cases that end them: their
    groups, their environment, their memory."""
    return any(state.steps > _STEPS_TOGETHER for state in rank_states(folder))


def read_results(folder: Path) -> list[CaseSeen]:
    """What rank 0 wrote of all cases; none where it never came so far."""
    path = folder / RESULTS
    lines = _whole_lines(path.read_bytes()) if path.exists() else []
    return [_seen(json.loads(line)) for line in lines]


class LineCount:
    """How many lines a file has that grows: what was counted is not read again."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._lines = path, 0, 0

    def count(self) -> int:
        """The lines written to their end; 0 where there is no file."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            self._offset += len(new)
            self._lines += new.count(b"\n")
        return self._lines


def _seen(read: dict[str, object]) -> CaseSeen:
    ranks = read["ranks"]
    assert isinstance(ranks, list)
    times = tuple(RankTimes(rank, tuple(starts), tuple(took)) for rank, starts, took in ranks)
    wrong = read["wrong"]
    assert isinstance(wrong, list)
    extra = read.get("extra")
    return CaseSeen(
        int(str(read["round"])),
        int(str(read["case"])),
        times,
        str(read["left_out"]),
        tuple(wrong),
        Collective(**extra) if isinstance(extra, dict) else None,
        str(read.get("identity", "")),
    )


def _state(path: Path) -> RankState:
    lines = _whole_lines(path.read_bytes())
    first, last = (json.loads(line) for line in (lines[0], lines[-1])) if lines else ({}, {})
    process = ProcessId(*first["process"]) if "process" in first else None
    rank = int(path.stem.removeprefix("rank-"))
    return RankState(rank, process, len(lines), str(last.get("step", "")))


def _whole_lines(data: bytes) -> list[bytes]:
    """The lines that are written to their end: whoever wrote the last one may have been killed."""
    return data.split(b"\n")[:-1]
