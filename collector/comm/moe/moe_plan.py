"""What a bench of mixtures of experts does, decided before any rank starts."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collector.codec.errors import BadInput
from collector.comm.bench_plan import Mode, number_of
from collector.comm.moe.routing import Routing, replayed, skewed
from collector.ranks.distribution import DistributeCall
from collector.ranks.experts import ExpertCall, largest_buffsize_mb
from collector.ranks.gangs import RoutedCall

CALLS = (5, 100)  # fewest and most that are timed in a round


def modes_of(backend: str) -> tuple[Mode, ...]:
    """How experts can be timed on a backend, the best first. On an NPU a call is one kernel, which
    a profiler tells: events hold the launch, too. Elsewhere a reference is many of them."""
    return (Mode.KERNEL, Mode.EVENT) if backend == "npu" else (Mode.EVENT,)


@dataclass(frozen=True, slots=True)
class MoeCase:
    """A call and where its tokens go: with `counts` in the proportions of what each expert got
    elsewhere, else with an `imbalance`, of which 0 is balanced."""

    call: RoutedCall
    seed: int
    imbalance: float = 0.0
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        how = "replayed" if self.counts else f"imbalance {self.imbalance:g}"
        return f"{self.call}, {how}, seed {self.seed}"

    def routing(self) -> Routing:
        """Where the tokens of all ranks go; BadInput for what no routing of the call can be."""
        if self.counts:
            return replayed(self.call, self.seed, self.counts)
        return skewed(self.call, self.seed, self.imbalance)


@dataclass(frozen=True, slots=True)
class MoePlan:
    """`rounds` times over all cases, each with as many calls as `budget_s` pays for, within
    `iterations` (fewest, most). All cases are of `world` ranks. `mode` is how a call is timed.
    BadInput for a mode that the backend does not have."""

    backend: str
    world: int
    rounds: int
    budget_s: float
    cases: tuple[MoeCase, ...]
    iterations: tuple[int, int] = CALLS
    mode: Mode = Mode.EVENT

    def __post_init__(self) -> None:
        if self.mode not in modes_of(self.backend):
            raise BadInput(
                f"mode: expected {' or '.join(modes_of(self.backend))} for experts on "
                f"{self.backend}, got {self.mode}"
            )

    def largest_buffsize_mb(self) -> int:
        """HCCL_BUFFSIZE with which no call is refused for it."""
        return largest_buffsize_mb(case.call for case in self.cases)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "MoePlan":
        """The plan that `to_json` wrote, by this version of the program."""
        read = json.loads(text)
        cases = [{**case, "call": _call(case["call"])} for case in read["cases"]]
        read["cases"] = tuple(
            MoeCase(**{**case, "counts": tuple(case["counts"])}) for case in cases
        )
        return cls(**{**read, "iterations": tuple(read["iterations"]), "mode": Mode(read["mode"])})

    @property
    def number(self) -> int:
        """A number by which ranks see whether they were told the same."""
        return number_of(self.to_json())


def _call(read: dict[str, Any]) -> RoutedCall:
    if "kernel" in read:
        return DistributeCall(**{**read, "optional": tuple(read["optional"])})
    return ExpertCall(**read)


# HCCL_BUFFSIZE: the room that kernels of experts have in each other's memory.

HCCL_BUFFSIZE = "HCCL_BUFFSIZE"


def buffsize_settings(
    backend: str, wanted_mb: int, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What ranks are started with, besides their environment, so that they have `wanted_mb` MiB:
    nothing where nobody reads it, or where somebody has said otherwise."""
    if backend != "npu" or HCCL_BUFFSIZE in environment:
        return {}
    return {HCCL_BUFFSIZE: str(wanted_mb)}
