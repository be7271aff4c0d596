"""What is known of the variance of a kind of device before anything of a stack was measured twice:
`data/variance.yaml`, each kind with where its figures come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

import yaml

from collector.stack import COLLECTIVE_LIBRARIES, backend_of


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """The variance of a session's mean, relative to the mean, is that of single repeats within a
    session times `ratio`, times the factor of the kernel's family. `repeat_spread` is the relative
    standard deviation of single repeats where a stack does not tell, `device_spread` that between
    devices. Deviations are distributed as Student's t with `tail_degrees`. All of it weighs as much
    as `weight` cases that were measured twice. No sound session's canaries take more than
    `canary_band` times as long as another's, or as at another place of it. `kind` is whose prior
    it is: two kinds may have the same figures, and tell nothing of each other."""

    ratio: float
    tail_degrees: float
    repeat_spread: float
    device_spread: float
    weight: float
    families: Mapping[str, float] = field(default_factory=dict)
    canary_band: float = inf
    kind: str = ""

    def ratio_of(self, family: str) -> float:
        return self.ratio * self.families.get(family, 1.0)


def prior_of(device: str, *, over_ranks: bool = False) -> VariancePrior:
    """The prior of a device by its backend, or of the library by which its ranks send messages."""
    backend = backend_of(device)
    return _priors()[COLLECTIVE_LIBRARIES[backend] if over_ranks else backend]


def prior_of_backend(backend: str) -> VariancePrior:
    """The prior of a device that no stack names yet."""
    return _priors()[backend]


@cache
def _priors() -> dict[str, VariancePrior]:
    text = (files("collector") / "data" / "variance.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {
        kind: VariancePrior(
            kind=kind, **{name: value for name, value in facts.items() if name != "origin"}
        )
        for kind, facts in table.items()
    }
