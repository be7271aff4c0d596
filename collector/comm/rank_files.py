"""The files between ranks and the process that watches them: plan, journals, results, stacks."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from collector.codec.canonical import decode_object
from collector.comm.timing import RankTimes
from collector.ranks.collective import Collective
from collector.replay.process import ProcessId

T = TypeVar("T")
PLAN, RESULTS = "plan.json", "results.jsonl"
TLS = "tls.txt"  # the state of the TLS switches of this node's NPUs, if the ranks compare them
_STEPS_TOGETHER = 3  # of a rank's journal: joining the others, comparing plans, a first message
TOO_LARGE = "too large for the"  # prefix of the reason of a case that exceeds a rank's memory


def stacks_name(rank: int) -> str:
    return f"rank-{rank}.stacks"


@dataclass(frozen=True, slots=True)
class RankState:
    """The position of a rank from its journal: the number of steps, and the current step."""

    rank: int
    process: ProcessId | None
    steps: int
    step: str


@dataclass(frozen=True, slots=True)
class CaseSeen:
    """The results of one round for a case; `case` is its index in the plan. `extra` is a size
    outside the plan, with an index after those of the plan. Rounds beyond the plan's are those of
    jumps."""

    round: int
    case: int
    ranks: tuple[RankTimes, ...]
    left_out: str
    wrong: tuple[int, ...]
    extra: Collective | None = None
    identity: str = ""


def read_rank_plan(kind: type[T], text: str) -> T:
    """Return the plan that `to_json` of this version of the program wrote."""
    return decode_object(kind, text.encode(), what="a plan", key=PLAN)


def wrong_result(rounds: Iterable[CaseSeen]) -> str:
    """Return a text that names the ranks with a wrong result; empty if all are right."""
    ranks = sorted({rank for one in rounds for rank in one.wrong})
    return f"the result of rank {', '.join(map(str, ranks))} is wrong" if ranks else ""


def rank_states(folder: Path) -> list[RankState]:
    """Return the ranks of this node that have begun, in order of their names."""
    return [_state(path) for path in sorted(folder.glob("rank-*.jsonl"))]


def have_met(folder: Path) -> bool:
    """Return whether the ranks have met. From then on the cases may end the ranks: their groups,
    their environment, their memory."""
    return any(state.steps > _STEPS_TOGETHER for state in rank_states(folder))


def read_rank_results(folder: Path) -> list[CaseSeen]:
    """Return the results of all cases that rank 0 wrote; none if it wrote no file."""
    return [_seen(json.loads(line)) for line in whole_lines(folder / RESULTS)]


def _seen(read: dict[str, Any]) -> CaseSeen:
    times = (RankTimes(rank, tuple(starts), tuple(took)) for rank, starts, took in read["ranks"])
    extra = Collective(**read["extra"]) if read.get("extra") else None
    changed = {"ranks": tuple(times), "wrong": tuple(read["wrong"]), "extra": extra}
    return CaseSeen(**{**read, **changed})


def _state(path: Path) -> RankState:
    lines = whole_lines(path)
    first, last = (json.loads(line) for line in (lines[0], lines[-1])) if lines else ({}, {})
    process = ProcessId(*first["process"]) if "process" in first else None
    rank = int(path.stem.removeprefix("rank-"))
    return RankState(rank, process, len(lines), str(last.get("step", "")))


def whole_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file, none if there is no file: the writer of the last one may
    have been killed."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []
