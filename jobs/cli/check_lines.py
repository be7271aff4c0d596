"""How checks are printed, one by one as they are reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobs.cli.terminal import say

if TYPE_CHECKING:
    from jobs.doctor.machine import Check


def print_checks(checks: Iterable[Check], width: int = 10) -> list[Check]:
    """A line each, and what to do about one that failed. Returns them."""
    seen = []
    for check in checks:
        word = "FAIL" if not check.ok else "skip" if check.skipped else "ok  "
        say(f"{word}  {check.name:<{width}} {check.found}")
        if not check.ok and check.fix:
            say(f"      fix: {check.fix}")
        seen.append(check)
    return seen
