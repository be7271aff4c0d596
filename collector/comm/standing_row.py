"""Whether a row that stands in a file may be changed: by one that was timed as it was.

A number of another mode, or of another algorithm, is another number of the same key: taken for the
old one it would look like a change of the machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.collective_case import SETTING_PREFIXES
from collector.collective_row import DURATION, KEY
from collector.errors import BadInput

_NEXT = re.compile(f"[; ](?={'|'.join(SETTING_PREFIXES)})")
# Variables that say where ranks meet, how long they wait and what they tell: no number depends on
# them, and they differ from machine to machine.
_NO_MATTER = ("_IF_IP", "_IF_BASE_PORT", "_SOCKET_IFNAME", "_TIMEOUT", "_DEBUG")


@dataclass(frozen=True, slots=True)
class Way:
    """How rows are timed; `environment` as `NAME=value`, parted by `;`, or by blanks as a campaign
    says it."""

    backend: str
    mode: str
    environment: str


def check_row(row: Mapping[str, str], way: Way, path: Path) -> None:
    """BadInput where a row was timed in another way than the one that would take its place."""
    # Other producers have no such columns: what they measured is of NPUs.
    there = row.get("backend", "") or ("hccl" if row.get(DURATION) else way.backend)
    if there != way.backend:
        raise BadInput(f"expected rows of backend {way.backend}, got rows of {there}", path=path)
    mode = row.get("mode", "")
    if not mode:
        return
    which = f"the row of {row[KEY[0]]} bytes over {row[KEY[1]]} ranks"
    if mode != way.mode:
        raise BadInput(
            f"{which} has mode {mode}, this run uses {way.mode}: use --bench-mode {mode} or write "
            "to another folder",
            path=path,
        )
    old, new = _settings(row.get("environment", "")), _settings(way.environment)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise BadInput(
                f"{which} was measured with {name} {old.get(name, 'unset')}, this run has "
                f"{new.get(name, 'unset')}: set the old value or write to another folder",
                path=path,
            )


def _settings(environment: str) -> dict[str, str]:
    """The variables on which a number depends. Values may hold a `;`, as those of HCCL_ALGO do."""
    found = (one.partition("=") for one in _NEXT.split(environment) if one)
    return {name: value for name, _, value in found if not name.endswith(_NO_MATTER)}
