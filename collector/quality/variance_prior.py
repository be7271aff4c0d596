"""Prior of a kind of device, used before any case of a stack was measured twice:
`data/variance.yaml`, with the source of each kind's figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

import yaml

from collector.model.stack import COLLECTIVE_LIBRARIES, backend_of


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """Prior of the variance of a kind of device.

    The relative variance of a session's mean is the variance of single repeats within a session,
    times `ratio`, times the factor of the kernel's family. `repeat_spread` is the relative standard
    deviation of single repeats if a stack has no data; `device_spread` is that between devices.
    Deviations follow Student's t with `tail_degrees`. The prior weighs as much as `weight` cases
    that were measured twice.

    The canaries of a valid session take at most `canary_band` times as long as those of another
    session, or as at another place of the session. `kind` names the kind of device: two kinds may
    have equal figures, and still share no data."""

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
    """Return the prior of a device by its backend, or by the library that its ranks use to
    communicate."""
    backend = backend_of(device)
    kind = COLLECTIVE_LIBRARIES.get(backend, backend) if over_ranks else backend
    return _priors()[kind]


def prior_of_backend(backend: str) -> VariancePrior:
    """Return the prior of a device that no stack names yet."""
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
