"""What a probe tries, decided before any rank starts, and what became of it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from collector.comm.moe.region import Point, ProbeGrid, Region
from collector.comm.rank_files import RESULTS
from collector.errors import BadInput
from collector.expert_call import ExpertCall, check, largest_buffsize_mb

PROBER = "collector.comm.moe.prober"
OPERATOR, OPERATOR_OF_DECODE = "dispatch_ffn_combine", "dispatch_gmm_combine_decode"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Calls of `world` ranks over a grid, all else equal. A try may take `patience_s` until its
    tensors are there, and twice that for the call. `memory_bytes` is what a rank may use, None for
    what is free. `operator` is what an NPU runs, of vLLM-Ascend's extension. `prober` is the module
    of which each rank keeps a process."""

    backend: str
    world: int
    hidden: int
    intermediate: int
    is_int8: bool
    dtype: str
    grid: ProbeGrid
    patience_s: float
    memory_bytes: int | None = None
    seed: int = 0
    operator: str = OPERATOR
    prober: str = PROBER

    def call(self, point: Point) -> ExpertCall:
        """The call of a point of the grid."""
        tokens, experts, choices = self.grid.values(point)
        return ExpertCall(
            tokens,
            self.hidden,
            self.intermediate,
            experts,
            choices,
            self.world,
            self.is_int8,
            self.dtype,
        )

    def is_call(self, point: Point) -> bool:
        """Whether a point is a call at all, whoever may accept it."""
        try:
            check(self.call(point))
        except BadInput:
            return False
        return True

    def largest_buffsize_mb(self) -> int:
        """HCCL_BUFFSIZE with which no call of the grid is refused for it."""
        return largest_buffsize_mb(map(self.call, self.region().open_list()))

    def region(self) -> Region:
        """The region, of which nothing is known."""
        return Region(self.grid, self.is_call)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ProbePlan":
        """The plan that `to_json` wrote, by this version of the program."""
        read = json.loads(text)
        axes = {name: tuple(values) for name, values in read["grid"].items()}
        return cls(**{**read, "grid": ProbeGrid(**axes)})


@dataclass(frozen=True, slots=True)
class Try:
    """One point that was tried. `reason` says which rank refused it, and why; `restarted` are the
    ranks whose process was lost by it."""

    point: Point
    is_accepted: bool
    reason: str = ""
    restarted: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_tries(folder: Path) -> list[Try]:
    """What rank 0 wrote of all tries, as far as it came."""
    path = folder / RESULTS
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = []
    for line in whole:
        read = json.loads(line)
        tokens, experts, choices = read["point"]
        restarted = tuple(read["restarted"])
        point = (tokens, experts, choices)
        found.append(Try(point, read["is_accepted"], read["reason"], restarted))
    return found
