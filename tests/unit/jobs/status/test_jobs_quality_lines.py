"""The few printed lines about the quality of numbers."""

from dataclasses import replace

import pytest

from collector.database.version_quality import Need, Verdict, VersionQuality
from collector.model.measurement import Proof
from collector.quality.pooled import SHARES, Coverage, SessionDifferences
from jobs.status.lines import brief_lines, identity_lines, version_quality_lines
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast

APART = SessionDifferences(20, 0.01, 0.03, 0.05)
QUALITY = VersionQuality(
    version_path="made",
    durations=40,
    collectives=0,
    of_several_sessions=20,
    imported=0,
    sessions=APART,
    devices=APART,
    reliability=tuple(Coverage(share, share, 20, False) for share in SHARES),
    is_blind=True,
    median_reach=0.02,
    wider=(0.5, 0.1, 0.0),
    origins={"band": 40},
    warned=0,
    refused={},
    suspect={},
    canaries=(),
    proofs={Proof.PROVED: 39, Proof.UNVERIFIED: 1},
)


def first_words(lines):
    return [line.split()[0] for line in lines]


def test_run_prints_three_lines_about_its_precision():
    assert first_words(brief_lines(QUALITY)) == ["sessions", "intervals", "widths"]


def test_proved_identities_are_a_separate_line():
    (line,) = identity_lines(QUALITY)
    assert numbers(line) == ["39", "1"]


def test_quality_of_a_version_has_the_lines_of_a_run_and_more():
    verdict = Verdict(0.1, 40, 30, {Need.CHECK: 3, Need.MORE_SESSIONS: 7}, 5)
    reported = first_words(version_quality_lines(QUALITY, verdict))
    known = ["identity", "sessions", "intervals", "widths", "devices"]
    assert reported == ["version", "durations", "usable", "others", "others", *known, "variance"]


def test_second_sessions_that_show_nothing_are_not_denied():
    """Disturbed sessions are counted, and make no pairs."""
    texts = set()
    for sessions in (0, 20):
        without = replace(QUALITY, reliability=(), of_several_sessions=sessions)
        (line,) = (one for one in brief_lines(without) if one.startswith("intervals"))
        texts.add((sessions, "no case has a second session" in line))
    assert texts == {(0, True), (20, False)}


def test_widths_of_any_size_are_plain_numbers():
    wide = replace(QUALITY, median_reach=6123.4, wider=(0.9921, 0.5, 0.0))
    (line,) = (one for one in brief_lines(wide) if one.startswith("widths"))
    assert numbers(line) == ["6120", "99.2", "2", "50", "5", "0", "10"]
