"""From recorded events to measurements: the possible effects of a damaged recording.

A stream of events is converted to rows of op_summary, written as CSV, and attributed.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.vocabulary import ACCELERATOR_CORE, INPUT_SHAPES, OP_STATE
from collector.profiles.launches import KernelLaunch, read_op_summary
from collector.quality.identity import Expectation
from collector.quality.reconcile import (
    CONTEXT_MARK,
    FLUSH,
    SENTINEL_TYPE,
    TICK,
    Attribution,
    Mark,
    Sentinel,
    attribute,
)
from collector.replay.kineto import SENTINEL_OPERATOR, Event, Filing, summary_rows
from collector.replay.msprof import join_summaries, write_summary
from tests.unit.collector.naming import names

CELLS = {
    OP_STATE: "dynamic",
    ACCELERATOR_CORE: "AI_VECTOR_CORE",
    INPUT_SHAPES: '"4,4;4,4"',
    "Input Data Types": "FLOAT;FLOAT",
    "Input Formats": "ND;ND",
    "Output Shapes": '"4,4"',
    "Output Data Types": "FLOAT",
    "Output Formats": "ND",
}


@dataclass(frozen=True)
class Recorded:
    """An event, and the case it was recorded for."""

    event: Event
    owner: int | None = None
    part: str = "stray"  # open | close | tick | flush mark | flush | operator | stray


@dataclass(frozen=True)
class Recording:
    items: tuple[Recorded, ...]
    expectations: tuple[Expectation, ...]

    @property
    def filings(self) -> dict[int, Filing]:
        return {
            e.ordinal: Filing(
                *(e.kernel_type, CELLS),
                tuple(Filing(min(types), CELLS) for types in e.before),
            )
            for e in self.expectations
        }

    def attributed(
        self, items: list[Recorded] | None = None
    ) -> dict[int, Attribution[KernelLaunch]]:
        """Run all steps, with starts as from a device."""
        clock, events = 1_000_000, []
        for item in self.items if items is None else items:
            events.append(replace(item.event, start_ns=clock))
            clock += item.event.duration_ns + 10
        path = Path(folder().name, "op_summary.csv")
        write_summary(summary_rows(events, self.filings), path)
        rows = list(read_op_summary(path)) if events else []
        return attribute(rows, self.expectations)


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """A path where one summary after the other is written, each replacing the last."""
    return tempfile.TemporaryDirectory()


@pytest.fixture(scope="module", autouse=True)
def folder_ends() -> Iterator[None]:
    yield
    folder().cleanup()
    folder.cache_clear()


def mark_event(sentinel: Sentinel) -> Event:
    return Event(SENTINEL_OPERATOR, 0, 300, sentinel.shape)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Draw an intact recording: several cases, each of one or more operators, warm or cold."""
    items: list[Recorded] = []
    expectations = []
    duration = 1000
    cold = draw(st.booleans())
    for ordinal in range(draw(st.integers(1, 4))):
        operators = draw(
            st.lists(
                st.sampled_from(["aten::mm", "aten::mul", "aten::add_"]), min_size=1, max_size=3
            )
        )
        repeats, others = draw(st.integers(2, 4)), draw(st.integers(1, 2))
        items.append(Recorded(Event("aten::normal_", 0, 5000)))
        items.append(Recorded(mark_event(Sentinel(Mark.OPEN, ordinal)), ordinal, "open"))
        for _ in range(repeats + others):
            if cold:
                items.append(Recorded(mark_event(FLUSH), ordinal, "flush mark"))
                items.append(Recorded(Event("aten::add_", 0, 77_000), ordinal, "flush"))
            items.append(Recorded(mark_event(TICK), ordinal, "tick"))
            for operator in operators:
                duration += 1
                items.append(Recorded(Event(operator, 0, duration), ordinal, "operator"))
        items.append(Recorded(mark_event(Sentinel(Mark.CLOSE, ordinal)), ordinal, "close"))
        expectations.append(Expectation(ordinal, f"Kernel{ordinal}", repeats + others, repeats))
    return Recording(tuple(items), tuple(expectations))


@st.composite
def contexts(draw: st.DrawFn) -> Recording:
    """Draw an intact recording of one case after others, whose operators may be its own."""
    operators = st.lists(st.sampled_from(["aten::mm", "aten::mul"]), min_size=1, max_size=2)
    launches = draw(st.lists(operators, min_size=2, max_size=4))
    repeats = draw(st.integers(3, 4))
    items = [Recorded(mark_event(Sentinel(Mark.OPEN, 0)), 0, "open")]
    for number in range(repeats):
        items.append(Recorded(mark_event(CONTEXT_MARK), 0, "context"))
        for place, launch in enumerate(launches, 1):
            items.append(Recorded(mark_event(TICK), 0, "tick"))
            duration = 1000 + number if place == len(launches) else 90_000
            part = "operator" if place == len(launches) else "before"
            items += [Recorded(Event(name, 0, duration), 0, part) for name in launch]
    items.append(Recorded(mark_event(Sentinel(Mark.CLOSE, 0)), 0, "close"))
    before = (frozenset({"Kernel"}),) * (len(launches) - 1)
    return Recording(tuple(items), (Expectation(0, "Kernel", repeats, repeats, before=before),))


def numbers(case: Attribution[KernelLaunch]) -> tuple[float, ...]:
    return tuple(launch.duration_us for launch in case.repeats)


Attributions = dict[int, Attribution[KernelLaunch]]


def untouched(
    recording: Recording, damaged: list[Recorded], owner: int | None
) -> tuple[Attributions, Attributions]:
    """Assert that every case but the owner's is unchanged; return the attribution before and
    after."""
    before, after = recording.attributed(), recording.attributed(damaged)
    for ordinal in before:
        if ordinal != owner:
            assert numbers(after[ordinal]) == numbers(before[ordinal])
            assert after[ordinal].companions == before[ordinal].companions
            assert after[ordinal].lost == before[ordinal].lost == ""
    return before, after


@given(recordings())
@settings(max_examples=50, deadline=None)
def test_duration_of_a_launch_is_the_sum_of_its_operators(recording):
    found = recording.attributed()
    for expected in recording.expectations:
        events = [
            item.event.duration_ns
            for item in recording.items
            if item.owner == expected.ordinal and item.part == "operator"
        ]
        width = len(events) // expected.launches
        sums = [sum(events[i : i + width]) / 1000 for i in range(0, len(events), width)]
        case = found[expected.ordinal]
        assert case.lost == ""
        assert numbers(case) == pytest.approx(sums[-expected.repeats :])
        assert case.companions == ()
        assert {launch.op_type for launch in case.repeats} == {expected.kernel_type}
        assert {launch.task_type for launch in case.repeats} == {"AI_VECTOR_CORE"}


@given(recordings(), st.data())
@settings(max_examples=150, deadline=None)
def test_dropped_event_affects_at_most_its_own_case(recording, data):
    place = data.draw(st.integers(0, len(recording.items) - 1))
    lost = recording.items[place]
    damaged = [*recording.items[:place], *recording.items[place + 1 :]]
    whole, found = untouched(recording, damaged, lost.owner)
    if lost.owner is None:
        return
    after = found[lost.owner]
    if lost.part in ("open", "close", "tick", "operator"):
        assert after.lost
    else:  # without its mark a flush is a companion, or invalidates a similar launch
        assert after.lost or numbers(after) == numbers(whole[lost.owner])
        assert after.lost or lost.part == "flush" or after.companions


@given(recordings(), st.data())
@settings(max_examples=150, deadline=None)
def test_duplicate_event_affects_at_most_its_own_case(recording, data):
    place = data.draw(st.integers(0, len(recording.items) - 1))
    doubled = recording.items[place]
    damaged = [*recording.items[: place + 1], *recording.items[place:]]
    whole, found = untouched(recording, damaged, doubled.owner)
    if doubled.owner is None:
        return
    after = found[doubled.owner]
    if doubled.part in ("open", "close", "operator"):
        assert after.lost
    else:
        assert numbers(after) == numbers(whole[doubled.owner])


@given(recordings(), st.data())
@settings(max_examples=100, deadline=None)
def test_dropped_launch_loses_its_case(recording, data):
    ticks = [i for i, item in enumerate(recording.items) if item.part == "tick"]
    first = data.draw(st.sampled_from(ticks))
    last = first + 1
    while recording.items[last].part == "operator":
        last += 1
    damaged = [*recording.items[:first], *recording.items[last:]]
    owner = recording.items[first].owner
    _, found = untouched(recording, damaged, owner)
    assert found[owner].lost


@given(recordings(), st.data())
@settings(max_examples=100, deadline=None)
def test_foreign_kernel_is_a_companion_and_changes_no_duration(recording, data):
    place = data.draw(st.integers(1, len(recording.items)))
    foreign = Recorded(Event("aten::foreign", 0, 4321))
    damaged = [*recording.items[:place], foreign, *recording.items[place:]]
    left = recording.items[place - 1]
    inside = left.owner if left.part not in ("close", "stray") else None
    whole, found = untouched(recording, damaged, inside)
    if inside is None:
        return
    after, before = found[inside], whole[inside]
    assert after.lost == ""
    assert numbers(after) == numbers(before)
    companions = [(c.kernel_type, c.count, c.mean_us) for c in after.companions]
    in_flush = left.part in ("flush mark", "flush")
    assert companions == ([] if in_flush else [("aten::foreign", 1, 4.321)])


@given(recordings(), st.data())
@settings(max_examples=100, deadline=None)
def test_duplicate_sentinel_costs_only_its_own_case(recording, data):
    sentinels = [item for item in recording.items if item.part in ("open", "close")]
    again = data.draw(st.sampled_from(sentinels))
    place = data.draw(st.integers(0, len(recording.items)))
    damaged = [*recording.items[:place], again, *recording.items[place:]]
    _, found = untouched(recording, damaged, again.owner)
    assert names(found[again.owner].lost, "sentinel", 2)


def test_operator_of_only_the_first_launch_is_a_companion():
    launches = [["aten::set_up", "aten::mm"], ["aten::mm"], ["aten::mm"]]
    events = [mark_event(Sentinel(Mark.OPEN, 0))]
    for launch in launches:
        events += [mark_event(TICK), *(Event(name, 0, 2000) for name in launch)]
    events.append(mark_event(Sentinel(Mark.CLOSE, 0)))
    timed = [replace(event, start_ns=i * 10_000) for i, event in enumerate(events)]
    rows = summary_rows(timed, {0: Filing("MatMulV3", CELLS)})
    assert [row.kernel_type for row in rows] == [
        *(SENTINEL_TYPE, "aten::set_up", "MatMulV3", "MatMulV3", "MatMulV3", SENTINEL_TYPE)
    ]


def test_partly_failed_case_leaves_strays():
    events = [
        mark_event(Sentinel(Mark.OPEN, 0)),
        mark_event(TICK),
        Event("aten::mm", 0, 2000),
    ]
    timed = [replace(event, start_ns=i * 10_000) for i, event in enumerate(events)]
    assert [row.kernel_type for row in summary_rows(timed, {})] == [SENTINEL_TYPE, "aten::mm"]


def test_slices_are_joined_under_one_header(tmp_path):
    event = Event("aten::mm", 1_795_253_776_190_498_624, 83_103)
    write_summary(summary_rows([event], {}), tmp_path / "a.csv")
    write_summary(
        summary_rows([replace(event, start_ns=event.start_ns + 10**6)], {}), tmp_path / "b.csv"
    )
    assert join_summaries([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "all.csv")
    rows = list(read_op_summary(tmp_path / "all.csv"))
    assert [row.start_ns for row in rows] == [event.start_ns, event.start_ns + 10**6]
    assert [row.duration_us for row in rows] == [83.103, 83.103]
    assert not join_summaries([], tmp_path / "none.csv")
    assert not list(tmp_path.glob("*.partial"))


@given(contexts(), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_recording_never_counts_context_launches_as_own(recording, data):
    (expected,) = recording.expectations
    width = sum(i.part == "operator" for i in recording.items) // expected.launches
    whole = recording.attributed()[0]
    sums = [width * (1000 + n) / 1000 for n in range(expected.launches)]
    assert (whole.lost, whole.companions) == ("", ())
    assert numbers(whole) == pytest.approx(sums)
    place = data.draw(st.integers(0, len(recording.items) - 1))
    item = recording.items[place]
    again = data.draw(st.sampled_from([(), (item, item)]))
    damaged = [*recording.items[:place], *again, *recording.items[place + 1 :]]
    after = recording.attributed(damaged)[0]
    assert after.lost or numbers(after) == numbers(whole)
    assert after.lost or again
