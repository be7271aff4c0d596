"""Numbers of things, as people say them."""

import pytest

from collector.counting import counted

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
