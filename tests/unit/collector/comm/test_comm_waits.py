"""Waits of messages, from captures of several ranks."""

import pytest

pytest.importorskip("torch")
from collector.capture.messages import Message, write_messages
from collector.comm.waits import message_waits
from collector.profiles.transfers import read_transfers

pytestmark = pytest.mark.torch

REDUCE, BROADCAST = "hcom_allReduce_", "hcom_broadcast_"


@pytest.fixture
def ranks_of(tmp_path):
    """Return a function that captures ranks, each with messages as triples of kernel type, start
    and duration in us, and reads them."""

    def read(*ranks, size=2):
        for number, sent in enumerate(ranks):
            output = tmp_path / f"rank{number}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
            output.mkdir(parents=True)
            write_messages(
                (
                    (0, f"{kernel}_001_{place}_1", message(kernel, size), span(start_us, us))
                    for place, (kernel, start_us, us) in enumerate(sent)
                ),
                output,
            )
            yield read_transfers(output)

    return read


def message(kernel, size):
    return Message(kernel, 64, "FP32", "group_name_1", tuple(range(size)))


def span(start_us, duration_us):
    return round(start_us * 1000), round((start_us + duration_us) * 1000)


def test_last_rank_waits_for_nobody_and_clocks_may_differ(ranks_of):
    first = [(REDUCE, 0, 50), (REDUCE, 100, 20)]
    second = [(REDUCE, 9040, 10), (REDUCE, 9100, 60)]
    found = message_waits(ranks_of(first, second))
    assert sorted(found.waits_us) == pytest.approx([0, 0, 40, 40])
    assert (found.messages, found.ranks, found.partial) == (2, 2, 0)
    assert str(found) == "2 messages of 2 ranks"


def test_broadcasts_do_not_count_since_their_ranks_do_not_end_together(ranks_of):
    found = message_waits(ranks_of([(BROADCAST, 0, 5)], [(BROADCAST, 0, 500)]))
    assert found.messages == 0 and not found.waits_us


def test_messages_without_all_of_their_ranks_are_counted(ranks_of):
    found = message_waits(ranks_of([(REDUCE, 0, 5)], [(REDUCE, 0, 8)], size=4))
    assert found.partial == 1 and str(found).endswith("1 without all of their ranks")
