"""Rows of a profile of the user's own, measured here: near what they took there."""

from pathlib import Path
from statistics import median

from collector.ops.refusals import refusal
from collector.ops.registry import find
from collector.profiles.kernel_details import read_profile
from collector.record import CaseRecord
from jobs.doctor.machine import Check
from jobs.selftest.bench import Bench, Wanted

_ROWS = 20
_APART = 2.0  # the middle ratio, in either direction: a cache or a clock does less


def check_profile(bench: Bench, profile: Path | None) -> Check:
    """The twenty rows that took most of a profile's time, against what they take here."""
    if profile is None:
        words = "no profile was given: --profile DIR"
        return Check("profile", True, words, skipped=True)
    records = heaviest(profile, bench.backend)
    if not records:
        words = f"{profile}: none of its rows can be measured on {bench.backend}"
        return Check("profile", True, words, skipped=True)
    session = bench.session(Wanted("profile", tuple(records)))
    there = {r.case_id: r.profile.mean_us for r in records if r.profile is not None}
    ratios = sorted(
        (m.timing.mean_us / there[m.case_id], m.kernel_type)
        for m in session.answers
        if m.timing is not None
    )
    fix = (
        "was the profile taken on this device and release? If so: report an issue, with the report"
    )
    if not ratios:
        return Check("profile", False, f"none of {len(records)} rows was measured", fix)
    middle = median(ratio for ratio, _ in ratios)
    (low, lowest), (high, highest) = ratios[0], ratios[-1]
    words = (
        f"{len(ratios)} rows take {middle:.2f} times what the profile records, from {low:.2f} "
        f"({lowest}) to {high:.2f} ({highest})"
    )
    return Check("profile", 1 / _APART <= middle <= _APART, words, fix)


def heaviest(profile: Path, backend: str) -> list[CaseRecord]:
    """The measurable rows of a profile that took most of its time, those first."""
    timed = [r for r in read_profile([profile]).records if r.profile is not None]
    timed.sort(key=lambda r: r.profile.total_us if r.profile else 0.0, reverse=True)
    return [r for r in timed if refusal(r.case, find, backend) is None][:_ROWS]
