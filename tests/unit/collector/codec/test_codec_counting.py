"""Counts in words, with singular and plural."""

import pytest

from collector.codec.text import counted, share_of, size_text, time_text

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("number", "nouns", "message"),
    [
        (0, ("case",), "0 cases"),
        (1, ("case",), "1 case"),
        (2000, ("case",), "2,000 cases"),
        (1, ("launch", "launches"), "1 launch"),
        (3, ("launch", "launches"), "3 launches"),
        (1, ("shard is left", "shards are left"), "1 shard is left"),
    ],
)
def test_singular_noun_follows_the_number_one(number, nouns, message):
    assert counted(number, *nouns) == message


def test_share_is_in_percent_and_a_dash_if_the_total_is_zero():
    assert share_of(1, 8) == "12.5 %" and share_of(0, 0) == "-"


def test_a_time_has_three_digits_and_a_unit_that_fits():
    for time_us, text in {
        0.0: "0 us",
        0.02: "0.0200 us",
        0.3: "0.300 us",
        2.7: "2.70 us",
        999.4: "999 us",
        999.7: "1.00 ms",
        -2_498.2: "-2.50 ms",
        1e6: "1.00 s",
        5.1234e9: "5,120 s",
    }.items():
        assert time_text(time_us) == text


def test_a_size_has_three_digits_and_a_unit_that_fits():
    for size_bytes, text in {
        0: "0 B",
        999: "999 B",
        42_949: "41.9 KiB",
        999.6 * 1024: "0.976 MiB",
        5_000_000_000: "4.66 GiB",
    }.items():
        assert size_text(size_bytes) == text
