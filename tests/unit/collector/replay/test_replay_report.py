"""The report of an ended session."""

from dataclasses import replace

import pytest

from collector.replay.supervisor import Ending, SessionReport, why_it_ended

pytestmark = pytest.mark.fast


def test_reason_of_a_session_that_never_began_has_its_last_log_line():
    log = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'\n"
    report = SessionReport(Ending.CRASHED, "exited with 1 outside any case", None, 1.0, log)
    last_line = "ModuleNotFoundError: No module named 'torch'"
    assert why_it_ended(report, began=False) == f"{report.reason}: {last_line}"
    assert why_it_ended(report, began=True) == report.reason
    assert why_it_ended(replace(report, reason="", log_tail=""), began=True)
    refused = replace(report, reason="expected cpu device 1", log_tail="expected cpu device 1\n")
    assert why_it_ended(refused, began=False) == refused.reason
