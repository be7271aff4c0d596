"""What a log shows of a run, and what a terminal does."""

import pytest

from jobs.view import LineView, TerminalView, view_for

pytestmark = pytest.mark.fast


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_log_gets_a_line_a_minute_with_rate_and_time_left():
    lines, clock = [], Clock()
    with LineView(lines.append, clock=clock) as view:
        for second in range(0, 130, 10):
            clock.now_s = second
            view.measure(second // 10, 100)
        clock.now_s = 135
        view.measure(100, 100)
    assert lines[0] == "answered 0 of 100 cases\n"
    assert lines[1] == "answered 6 of 100 cases, 0.1 cases/s, about 940 s left\n"
    assert lines[-1].startswith("answered 100 of 100 cases")
    assert len(lines) == 4


def test_the_view_fits_where_it_is_shown():
    assert isinstance(view_for(True), TerminalView)
    assert isinstance(view_for(False), LineView)


def test_a_terminal_shows_a_bar(capsys):
    with TerminalView() as view:
        view.say("plan 1")
        view.measure(3, 10)
    assert "plan 1" in capsys.readouterr().err
