"""The order of a pass: blocks that repeat, numbers of events and streams, and its file."""

import json
import random
from dataclasses import replace

import pytest

from collector.codec.canonical import canonical_json, decode_value
from collector.codec.errors import BadInput
from collector.workloads.call_order import (
    EARLIER,
    OUTSIDE,
    Block,
    CallKind,
    CallOrder,
    PassCall,
    find_blocks,
    number_events,
    number_streams,
)

pytestmark = pytest.mark.fast

LAUNCH, RECORD, WAIT = CallKind.LAUNCH, CallKind.RECORD, CallKind.WAIT


def expanded(parts):
    """Return the numbers that parts stand for."""
    found = []
    for part in parts:
        found += expanded(part.parts) * part.times if isinstance(part, Block) else [part]
    return found


def test_blocks_are_the_layers_of_a_model():
    """Five layers with a window and one without, ten times, then two with a window."""
    window, whole = [1, 2, 3, 4, 5, 6], [1, 2, 7, 4, 5, 6]
    order = [0, *((window * 5 + whole) * 10), *window * 2, 8, 9]
    before, layers, *rest = find_blocks(order)
    assert before == 0
    assert (layers.times, layers.parts[0]) == (10, Block(5, tuple(window)))
    assert expanded((before, layers, *rest)) == order
    assert Block(2, tuple(window)) in rest


@pytest.mark.parametrize("seed", range(20))
def test_blocks_have_every_number_in_order(seed):
    rng = random.Random(seed)
    order = []
    for _ in range(rng.randrange(1, 8)):
        order += [rng.randrange(6) for _ in range(rng.randrange(1, 9))] * rng.randrange(1, 9)
    parts = find_blocks(order)
    assert expanded(parts) == order


def call(kind, stream, subject, host_ns=0):
    return PassCall(kind, stream, subject, host_ns)


def test_events_of_equal_layers_have_equal_numbers():
    layers = [
        one
        for layer in range(8)
        for one in (
            call(LAUNCH, 0, 1),
            call(RECORD, 0, 1000 + layer),
            call(WAIT, 1, 1000 + layer),
            call(LAUNCH, 1, 2),
            call(RECORD, 1, 2000 + layer),
            call(WAIT, 0, 2000 + layer),
        )
    ]
    found = list(number_events([call(WAIT, 0, 99), call(RECORD, 0, 7), *layers, call(WAIT, 0, 7)]))
    (first, begin, *inner, end) = found
    assert first.subject == EARLIER
    assert (begin.subject, end.subject) == (1, 1)  # no event of a layer has its number
    assert [one.subject for one in inner] == [1, 2, 2, 2, 2, 2] * 8
    assert len(CallOrder.of(inner).parts) == 1


def test_streams_are_numbered_by_first_use():
    found = number_streams([call(LAUNCH, 5, 0), call(LAUNCH, 1, 0), call(LAUNCH, 5, 0)])
    assert [one.stream for one in found] == [0, 1, 0]


def order_of_layers() -> CallOrder:
    layer = (call(LAUNCH, 0, 1, 100), call(CallKind.MESSAGE, 1, 0, 40), call(LAUNCH, 0, 2, 60))
    slower = (replace(layer[0], host_ns=300), *layer[1:])
    return CallOrder.of([call(LAUNCH, 0, 0, 9000), *layer * 3, *slower, call(LAUNCH, 0, 3, 1)])


def test_order_has_every_call_with_the_mean_time_of_repetitions():
    order = order_of_layers()
    assert len(order) == len(order.calls) == 14
    assert [one.host_ns for one in order.calls] == [9000, *[150, 40, 60] * 4, 1]
    assert order.counts()[(LAUNCH, 0, 1)] == 4
    places = [(what[2], place, times) for what, place, times in order.places()]
    layers = "block 1, 4 times"
    assert places == [
        *((0, OUTSIDE, 1), (1, layers, 4), (0, layers, 4), (2, layers, 4)),
        (3, OUTSIDE, 1),
    ]
    assert CallOrder.of(order.calls) == order


def read(value) -> CallOrder:
    return decode_value(CallOrder, value, what="an order", key="file")


def test_order_is_read_as_it_was_written():
    order = order_of_layers()
    assert read(json.loads(canonical_json(order.to_json()))) == order
    assert order.to_json()["order"] == [0, [4, [1, 2, 3]], 4]


@pytest.mark.parametrize(
    "change",
    [
        {"order": [0, [4, [1, 2, 9]], 4]},
        {"order": [0, [1, [1, 2, 3]], 4]},
        {"order": [0, [4, [1, 2, True]], 4]},
        {"order": [[1000, [[1000, [[1000, [1]]]]]]], "host_ns": [1]},
        {"order": [[10**6, [[10**6, [[10**6, [[10**6, [1]]]]]]]]], "host_ns": [1]},
        {"order": 7},
        {"host_ns": [1]},
        {"host_ns": [9000, 150, 40, -60, 1]},
        {"distinct": [["jump", 0, 0]]},
        {"distinct": [["launch", 0, -1]] * 5},
        {"more": 1},
    ],
)
def test_order_of_another_form_is_refused(change):
    with pytest.raises(BadInput):
        read({**order_of_layers().to_json(), **change})
