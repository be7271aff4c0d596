"""A stream that was recorded on a cpu, damaged at every single position in turn.

`recorded_events.jsonl` has the top-level operators of a real session (torch 2.13, cold cache): Add,
RmsNorm of eight operators and SwiGlu of three, each with three warm-ups and three repeats.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collector.model.vocabulary import BASE_CELLS
from collector.profiles.launches import KernelLaunch, read_op_summary
from collector.quality.identity import Expectation
from collector.quality.reconcile import Attribution, Mark, attribute, sentinel_of
from collector.replay.kineto import Event, Filing, summary_rows
from collector.replay.msprof import write_summary

pytestmark = pytest.mark.fast

KERNELS = ("Add", "RmsNorm", "SwiGlu")
FILINGS = {i: Filing(kernel, dict.fromkeys(BASE_CELLS, "")) for i, kernel in enumerate(KERNELS)}
EXPECTED = [Expectation(i, kernel, 6, 3) for i, kernel in enumerate(KERNELS)]


def recorded() -> list[Event]:
    lines = Path(__file__).with_name("recorded_events.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in lines]
    return [Event(name, at, ns, tuple(shape) if shape else None) for name, at, ns, shape in values]


def owners(events: list[Event]) -> list[tuple[int | None, Mark | None]]:
    """Return for each event the case whose sentinels enclose it, itself included, and the mark that
    it is or follows."""
    found: list[tuple[int | None, Mark | None]] = []
    owner: int | None = None
    last: Mark | None = None
    for event in events:
        mark = sentinel_of(event.shape) if event.shape else None
        if mark is not None:
            last = mark.mark
            if last is Mark.OPEN:
                owner = mark.ordinal
        found.append((owner, last))
        if mark is not None and last is Mark.CLOSE:
            owner, last = None, None
    return found


def attributed(events: list[Event], path: Path) -> dict[int, Attribution[KernelLaunch]]:
    write_summary(summary_rows(events, FILINGS), path)
    return attribute(list(read_op_summary(path)), EXPECTED)


def numbers(case: Attribution[KernelLaunch]) -> tuple[object, ...]:
    durations = tuple(launch.duration_us for launch in case.repeats)
    return durations, case.observed, case.companions, case.lost


def test_recorded_events_reconcile(tmp_path):
    found = attributed(recorded(), tmp_path / "op_summary.csv")
    for case in found.values():
        assert (case.lost, case.observed, len(case.repeats)) == ("", 6, 3)
        assert case.companions == ()
    assert [launch.duration_us for launch in found[2].repeats] == [9.803, 8.618, 8.58]


@pytest.mark.thorough
def test_lost_event_costs_at_most_its_own_case(tmp_path):
    events = recorded()
    before = attributed(events, tmp_path / "whole.csv")
    lost = 0
    for place, (owner, mark) in enumerate(owners(events)):
        after = attributed([*events[:place], *events[place + 1 :]], tmp_path / "damaged.csv")
        _others_are_untouched(before, after, owner)
        if owner is not None and mark is not Mark.FLUSH:
            assert after[owner].lost, events[place]
            lost += 1
    assert lost == 2 * 3 + 6 * (2 + 9 + 4)  # sentinels; ticks and operators of six launches


@pytest.mark.thorough
def test_duplicate_event_costs_at_most_its_own_case(tmp_path):
    events = recorded()
    before = attributed(events, tmp_path / "whole.csv")
    for place, (owner, mark) in enumerate(owners(events)):
        again = replace(events[place], start_ns=events[place].start_ns + 1)
        after = attributed(
            [*events[: place + 1], again, *events[place + 1 :]], tmp_path / "damaged.csv"
        )
        _others_are_untouched(before, after, owner)
        if owner is None or mark is Mark.FLUSH or events[place].shape is not None:
            sentinel = mark in (Mark.OPEN, Mark.CLOSE)
            assert owner is None or bool(after[owner].lost) == sentinel
        else:
            assert after[owner].lost


@pytest.mark.thorough
def test_foreign_kernel_changes_no_duration(tmp_path):
    events = recorded()
    before = attributed(events, tmp_path / "whole.csv")
    for place, (owner, mark) in enumerate(owners(events)):
        foreign = Event("aten::foreign", events[place].start_ns + 1, 4321)
        after = attributed(
            [*events[: place + 1], foreign, *events[place + 1 :]], tmp_path / "damaged.csv"
        )
        inside = owner if mark is not Mark.CLOSE else None
        _others_are_untouched(before, after, inside)
        if inside is not None:
            assert after[inside].lost == ""
            assert numbers(after[inside])[0] == numbers(before[inside])[0]
            named = [(c.kernel_type, c.count, c.mean_us) for c in after[inside].companions]
            assert named == ([] if mark is Mark.FLUSH else [("aten::foreign", 1, 4.321)])


def _others_are_untouched(
    before: dict[int, Attribution[KernelLaunch]],
    after: dict[int, Attribution[KernelLaunch]],
    owner: int | None,
) -> None:
    for ordinal in before:
        if ordinal != owner:
            assert numbers(after[ordinal]) == numbers(before[ordinal])
