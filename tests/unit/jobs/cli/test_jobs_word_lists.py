"""The earlier syntax for giving several words to one option."""

import pytest

from jobs.cli.options import repeated

LISTS = ("--ops", "--num-devices")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("comm --ops a b --dtype x", "comm --ops a --ops b --dtype x"),
        ("--num-devices 16 2", "--num-devices 16 --num-devices 2"),
        ("--num-devices 16 --num-devices 2", "--num-devices 16 --num-devices 2"),
        ("--dtype x y --ops a", "--dtype x y --ops a"),
        ("--ops --do-run z", "--ops --do-run z"),
        ("validate folder", "validate folder"),
    ],
)
def test_further_words_are_values_of_the_preceding_option(words, expected):
    assert list(repeated(words.split(), LISTS)) == expected.split()
