"""What is said of how good numbers are, in few lines."""

import pytest

from collector.database.version_quality import VersionQuality
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


def test_a_run_says_in_three_lines_how_well_its_numbers_are_known():
    assert first_words(brief_lines(QUALITY)) == ["sessions", "intervals", "widths"]


def test_what_is_proved_to_have_run_is_a_line_by_itself():
    (line,) = identity_lines(QUALITY)
    assert numbers(line) == ["39", "1"]


def test_a_version_says_both_and_more():
    told = first_words(version_quality_lines(QUALITY))
    known = ["identity", "sessions", "intervals", "widths", "devices"]
    assert told == ["version", "durations", *known, "variance"]
