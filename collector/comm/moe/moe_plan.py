"""The plan of a bench of mixtures of experts, fixed before any rank starts."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collector.codec.canonical import decode_value
from collector.codec.errors import BadInput
from collector.comm.bench_plan import Mode, plan_number
from collector.comm.moe.routing import Routing, replayed, skewed
from collector.ranks.distribution import DistributeCall
from collector.ranks.experts import ExpertCall, largest_buffsize_mb
from collector.ranks.gangs import RoutedCall

CALLS = (5, 100)  # fewest and most timed calls of a round


def modes_of(backend: str) -> tuple[Mode, ...]:
    """Return the modes that can time experts on a backend, the best first. On an NPU a call is one
    kernel, which a profiler reports; events include the launch, too. Elsewhere a reference
    consists of many kernels."""
    return (Mode.KERNEL, Mode.EVENT) if backend == "npu" else (Mode.EVENT,)


@dataclass(frozen=True, slots=True)
class MoeCase:
    """A call and the routing of its tokens: with `counts`, in proportion to the tokens that each
    expert got elsewhere; otherwise with an `imbalance`, where 0 is balanced."""

    call: RoutedCall
    seed: int
    imbalance: float = 0.0
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        how = "replayed" if self.counts else f"imbalance {self.imbalance:g}"
        return f"{self.call}, {how}, seed {self.seed}"

    def routing(self) -> Routing:
        """Return the routing of the tokens of all ranks. Raises BadInput for an impossible one."""
        if self.counts:
            return replayed(self.call, self.seed, self.counts)
        return skewed(self.call, self.seed, self.imbalance)


@dataclass(frozen=True, slots=True)
class MoePlan:
    """A plan with `rounds` rounds over all cases. Each case makes as many calls as fit `budget_s`,
    within `iterations` (fewest, most). All cases use `world` ranks. `mode` is how a call is timed.
    Raises BadInput for a mode that the backend does not have."""

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
        """Return an HCCL_BUFFSIZE, in MiB, that is large enough for every call."""
        return largest_buffsize_mb(case.call for case in self.cases)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "MoePlan":
        """Return the plan of the members that `to_json` wrote."""
        cases = tuple(
            MoeCase(**{**case, "call": _call(case["call"]), "counts": tuple(case["counts"])})
            for case in read["cases"]
        )
        changed = {"iterations": tuple(read["iterations"]), "mode": Mode(read["mode"])}
        return cls(**{**read, **changed, "cases": cases})

    @property
    def number(self) -> int:
        """Return a number by which ranks check that they have the same plan."""
        return plan_number(self.to_json())


def _call(read: object) -> RoutedCall:
    is_exchange = isinstance(read, dict) and "kernel" in read
    kind: type[RoutedCall] = DistributeCall if is_exchange else ExpertCall
    return decode_value(kind, read, what="a call", key="plan")


# HCCL_BUFFSIZE: the buffer that kernels of experts have in each other's memory.

HCCL_BUFFSIZE = "HCCL_BUFFSIZE"


def buffsize_settings(
    backend: str, required_mb: int, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables that give ranks `required_mb` MiB, in addition to their environment.
    Return none on backends that do not read it, or if the variable is already set."""
    if backend != "npu" or HCCL_BUFFSIZE in environment:
        return {}
    return {HCCL_BUFFSIZE: str(required_mb)}
