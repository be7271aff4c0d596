"""Which files are tables of kernels, by their names, and the folders where they are looked for."""

import os
from collections.abc import Iterator
from pathlib import Path

WANTED = "kernel_details*.csv or op_summary_*.csv"


def is_kernel_table(name: str) -> bool:
    """Whether a file of this name holds one row a launch."""
    low = name.lower()
    wanted = "kernel_details" in low or low.startswith("op_summary")
    return wanted and low.endswith(".csv") and not name.startswith(".")


def folders_below(path: Path) -> Iterator[Path]:
    """A folder and all below it, in order of their names. Links to folders are followed, as those
    by which ranks are gathered; each folder comes once, whatever leads to it."""
    seen: set[Path] = set()
    for name, below, _ in os.walk(path, followlinks=True):
        folder = Path(name)
        if (real := folder.resolve()) in seen:
            below.clear()
            continue
        seen.add(real)
        below.sort()
        yield folder
