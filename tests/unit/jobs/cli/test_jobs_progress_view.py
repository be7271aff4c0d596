"""How progress of a run appears in a log, and on a terminal."""

from dataclasses import replace

import pytest

from jobs.cli.progress_view import LineView, TerminalView, view_for
from jobs.executor.local_campaign import Tally
from tests.unit.jobs.plans import plan_of, shards_of
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_log_view_prints_a_line_a_minute_with_rate_and_eta():
    lines, clock = [], Clock()
    with LineView(lines.append, clock=clock) as view:
        for second in range(0, 130, 10):
            clock.now_s = second
            view.measure(second // 10, 100)
        clock.now_s = 135
        view.measure(100, 100)
    assert all(line.endswith("\n") for line in lines) and len(lines) == 4
    assert numbers(lines[0]) == ["0", "100"]
    assert numbers(lines[1]) == ["6", "100", "0.1", "16"]  # cases, their rate, and minutes left
    assert numbers(lines[-1])[:2] == ["100", "100"]


def test_log_view_has_no_eta_before_a_part_of_the_cases_is_measured():
    lines, clock = [], Clock()
    with LineView(lines.append, clock=clock) as view:
        for second, done in ((0, 0), (90, 1), (180, 5)):
            clock.now_s = second
            view.measure(done, 100)
    assert [("ETA" in line) for line in lines] == [False, False, True]
    assert numbers(lines[2])[2] == "0.028"


def test_view_depends_on_the_terminal():
    assert isinstance(view_for(True), TerminalView)
    assert isinstance(view_for(False), LineView)


def test_terminal_view_shows_a_progress_bar(capsys):
    with TerminalView() as view:
        view.say("plan 1")
        view.measure(3, 10)
    assert "plan 1" in capsys.readouterr().err


class Shown(LineView):
    """Keeps what it receives."""

    def __init__(self):
        super().__init__(lambda line: None)
        self.done = []

    def measure(self, done, cases):
        self.done.append((done, cases))


def test_restarted_shard_does_not_reduce_the_progress():
    shards = tuple(replace(shard, cases=10) for shard in shards_of(1.0, 1.0, 1.0))
    view = Shown()
    tally = Tally(plan_of(shards), ["s1", "s2"], view)
    tally.add("s1", 7)
    tally.add("s2", 1)
    tally.add("s1", 4)  # its next worker
    tally.add("s1", 8)
    tally.finished("s1")
    assert view.done == [(10, 30), (17, 30), (18, 30), (18, 30), (19, 30), (21, 30)]
