"""How well the head of a database knows each case, as its rows say it: what a plan goes by that
measures again where it tells most. The rows are read a file at a time, not the database.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import PurePosixPath

from collector.case import case_from_cells
from collector.database.columns import AVERAGE_DURATION, SESSIONS, STACK_INTERVAL
from collector.database.layout import is_kernel_file_name
from collector.database.published import Published
from collector.database.snapshot import read_file
from collector.errors import BadInput, DamagedObject


@dataclass(frozen=True, slots=True)
class KnownInterval:
    """How far the stack's interval of a case goes to each side, as the logarithm of a ratio, and of
    how many sessions its mean is. What the profiler cannot tell is not in it: it takes the lower
    end further down, and no session narrows that."""

    reach: float
    sessions: int


def known_intervals(published: Published, version_path: str) -> dict[str, KnownInterval | None]:
    """What a version directory shows a duration of, by case id, without collectives: the interval
    of each, None where an earlier edition showed none. Raises DamagedObject for rows that say
    something else."""
    if published.manifest is None or published.commit is None:
        return {}
    found: dict[str, KnownInterval | None] = {}
    for path, entry in published.manifest.tree.items():
        name = path.removeprefix(f"{version_path}/")
        if name == path or not is_kernel_file_name(name):
            continue
        data = read_file(published.store, published.commit, path, entry)
        try:
            found |= _intervals(data, PurePosixPath(path).stem)
        except (ArithmeticError, BadInput, KeyError, ValueError) as error:
            raise DamagedObject(f"expected rows with intervals: {error}", path=path) from error
    return found


def _intervals(data: bytes, kernel_type: str) -> dict[str, KnownInterval | None]:
    rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    shown = (row for row in rows if row.get(AVERAGE_DURATION))
    return {case_from_cells(kernel_type, row).case_id: _interval(row) for row in shown}


def _interval(row: Mapping[str, str]) -> KnownInterval | None:
    mean, low, high = (row.get(name) or "" for name in (AVERAGE_DURATION, *STACK_INTERVAL))
    if not (low and high):
        return None
    # The first rows with intervals said of no number of sessions: it was the last one's.
    return KnownInterval(log(float(high) / float(mean)), int(row.get(SESSIONS) or 1))
