"""Numbers of things, as people say them."""

import pytest

from collector.codec.text import counted, share_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("number", "nouns", "said"),
    [
        (0, ("case",), "0 cases"),
        (1, ("case",), "1 case"),
        (2000, ("case",), "2,000 cases"),
        (1, ("launch", "launches"), "1 launch"),
        (3, ("launch", "launches"), "3 launches"),
        (1, ("shard is left", "shards are left"), "1 shard is left"),
    ],
)
def test_one_is_said_as_one(number, nouns, said):
    assert counted(number, *nouns) == said


def test_a_share_is_told_in_percent_and_of_nothing_there_is_none():
    assert share_of(1, 8) == "12.5 %" and share_of(0, 0) == "-"
