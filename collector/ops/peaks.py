"""What devices can do at best, as `data/peaks.yaml` describes them: the forecast of a plan and the
floor of a measurement both start from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from collector.units import GIB


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """One entry of the table, and where its figures are from. `tflops` is by torch's dtype name;
    the shares are what kernels reach of compute and memory, for forecasts."""

    source: str
    tflops: Mapping[str, float]
    gib_per_s: float
    compute_share: float
    memory_share: float
    launch_us: float
    session_start_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.gib_per_s * GIB


def described_peaks(device: str) -> DevicePeaks | None:
    """The entry of a device; None for one that nobody has described."""
    facts = _table()["devices"].get(device)
    return None if facts is None else DevicePeaks(**facts)


def described_devices() -> tuple[str, ...]:
    """The devices that have an entry."""
    return tuple(_table()["devices"])


def assumed_peaks() -> DevicePeaks:
    """What a forecast takes for a device that nobody has described."""
    return DevicePeaks(**_table()["unknown"])


@cache
def _table() -> dict[str, Any]:
    text = (files("collector") / "data" / "peaks.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table
