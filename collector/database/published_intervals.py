"""How well the head of a database knows each case, as its rows say it: what a plan goes by that
measures again where it tells most. The rows are read a file at a time, not the database.
"""

import csv
import io
from dataclasses import dataclass
from math import log
from pathlib import PurePosixPath

from collector.case import case_from_cells
from collector.database.columns import SESSIONS, STACK_INTERVAL
from collector.database.layout import is_kernel_file_name
from collector.database.published import Published
from collector.database.snapshot import read_file
from collector.errors import BadInput, DamagedObject


@dataclass(frozen=True, slots=True)
class KnownInterval:
    """How far the stack's interval of a case goes to each side, as the logarithm of a ratio, and of
    how many sessions its mean is."""

    reach: float
    sessions: int


def published_intervals(published: Published, version_path: str) -> dict[str, KnownInterval]:
    """The intervals that a version directory shows, by case id; none of what has no duration there,
    and none of collectives. Raises DamagedObject for rows that say something else."""
    if published.manifest is None or published.commit is None:
        return {}
    found: dict[str, KnownInterval] = {}
    for path, entry in published.manifest.tree.items():
        name = path.removeprefix(f"{version_path}/")
        if name == path or not is_kernel_file_name(name):
            continue
        data = read_file(published.store, published.commit, path, entry)
        try:
            found |= _intervals(data, PurePosixPath(path).stem)
        except (BadInput, KeyError, ValueError) as error:
            raise DamagedObject(f"rows with intervals are wanted: {error}", path=path) from error
    return found


def _intervals(data: bytes, kernel_type: str) -> dict[str, KnownInterval]:
    found = {}
    for row in csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")):
        low, high = (row.get(name) or "" for name in STACK_INTERVAL)
        if low and high:
            reach = log(float(high) / float(low)) / 2
            case = case_from_cells(kernel_type, row)
            found[case.case_id] = KnownInterval(reach, int(row[SESSIONS]))
    return found
