"""`opmeter selftest cpu`, as a user calls it."""

import csv
import io
import json
import zipfile
from importlib.resources import files

import pytest
from typer.testing import CliRunner

from collector.codec.errors import BadInput
from collector.replay.lock import DeviceLock
from jobs.cli.app import app
from tests.unit.jobs.printed import missing, numbers

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPMETER_LOCKS", str(tmp_path / "locks"))
    return tmp_path


def requested(*words):
    done = CliRunner().invoke(app, ["selftest", *words])
    return done.exit_code, done.output, done.exception


def test_cpu_passes_and_writes_one_report(here):
    # None compares durations: other tests run at the same time.
    only = ("failures", "marks", "operators", "outputs", "layouts")
    code, message, _ = requested("cpu", *(word for name in only for word in ("--only", name)))
    assert code == 0, message
    lines = {line.split()[1]: line for line in message.splitlines() if len(line.split()) > 1}
    assert [lines[name].split()[0] for name in only] == ["ok", "ok", "ok", "ok", "skip"]
    assert numbers(lines["marks"]) == ["1000", "1"]  # marks, and sessions
    rows = (files("collector") / "data" / "selftest" / "operators.csv").read_text(encoding="utf-8")
    count = len(list(csv.reader(io.StringIO(rows)))) - 1  # below their header
    assert count > 160 and numbers(lines["operators"])[0] == str(count)
    (last,) = [line for line in message.splitlines() if "opmeter-selftest.zip" in line]
    assert numbers(last) == ["5", "0"]  # checks, and those that failed
    with zipfile.ZipFile(here / "opmeter-selftest.zip") as report:
        verdicts = json.loads(report.read("selftest.json"))
        assert [check["name"] for check in verdicts["checks"]] == list(only)
        assert {"failures/session.log", "marks-queue/op_summary.csv"} <= set(report.namelist())
        assert verdicts["proved"] == []  # no profiler of a CPU reports the arguments of a launch


def test_report_names_the_run_that_holds_the_device(here):
    with DeviceLock("cpu0", "another measurement"):
        code, message, error = requested("cpu")
    assert (code, error.code) == (1, 1)
    assert (
        missing(message, ["another measurement", "wait for its end", "opmeter-selftest.zip"]) == []
    )
    with zipfile.ZipFile(here / "opmeter-selftest.zip") as report:
        verdicts = json.loads(report.read("selftest.json"))
        assert "machine.txt" in report.namelist()
    (busy,) = (check for check in verdicts["checks"] if check["name"] == "device")
    assert not busy["ok"]
    assert "another measurement" in busy["found"] and "wait for its end" in busy["fix"]
    assert verdicts["stack"] is not None


@pytest.mark.parametrize(
    ("words", "data"),
    [
        (["tpu"], ["'tpu'", "npu, cuda, cpu"]),
        (["cpu", "--index", "3"], ["--index", "3", "1"]),
        (["cpu", "--report", "."], ["--report"]),
        (["cpu", "--only", "physic"], ["--only", "'physic'", "environment"]),
    ],
)
def test_invalid_option_is_refused_in_one_line(here, words, data):
    _, _, error = requested(*words)
    assert isinstance(error, BadInput) and missing(str(error), data) == []
    assert not (here / "opmeter-selftest.zip").exists()
