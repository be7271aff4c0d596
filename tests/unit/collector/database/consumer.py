"""A tree as the existing consumer reads it (msmodeling's ProfilingDataSource), as far as a tree can
make it fail: files read by pandas with its defaults, every row of a kernel type read, slots of
shapes converted to integers if a row has a duration."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

_DURATIONS = ("Average Duration(us)", "Profiling Average Duration(us)", "Duration(us)")

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Consumer:
    """Reads the `{KernelType}.csv` of one version folder, by name."""

    version: Path

    def kernel_types(self) -> list[str]:
        return sorted(path.stem for path in self.version.glob("*.csv"))

    def durations(self, kernel_type: str) -> dict[Shapes, float]:
        """Return the duration of each call, by the shapes of the inputs."""
        frame = pd.read_csv(self.version / f"{kernel_type}.csv")
        return dict(self._candidates(frame))

    def everything(self) -> dict[str, dict[Shapes, float]]:
        return {kernel_type: self.durations(kernel_type) for kernel_type in self.kernel_types()}

    def _candidates(self, frame: pd.DataFrame) -> Iterator[tuple[Shapes, float]]:
        columns = [name for name in _DURATIONS if name in frame.columns]
        for _, row in frame.iterrows():
            latency = next((v for name in columns if (v := _positive(row[name]))), None)
            if latency is not None:
                yield _shapes(row["Input Shapes"]), latency


def _positive(value: Any) -> float | None:
    number = float(value)
    return number if isfinite(number) and number > 0 else None


def _shapes(cell: object) -> Shapes:
    slots = str(cell).strip().strip('"').split(";")
    return tuple(tuple(int(part) for part in slot.split(",")) for slot in slots if slot)
