"""`opmeter selftest cpu`, as a user types it."""

import csv
import io
import json
import zipfile
from importlib.resources import files

import pytest
from typer.testing import CliRunner

from jobs.cli.app import app

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPMETER_LOCKS", str(tmp_path / "locks"))
    return tmp_path


def asked(*words):
    done = CliRunner().invoke(app, ["selftest", *words])
    return done.exit_code, done.output, done.exception


def test_a_cpu_passes_and_leaves_one_report(here):
    # None that compares durations: other tests run beside this one.
    only = ("failures", "marks", "operators", "outputs", "layouts")
    code, said, _ = asked("cpu", *(word for name in only for word in ("--only", name)))
    assert code == 0, said
    assert "ok    failures    oom, a bad argument and a killed session" in said
    assert "ok    marks       1,000 marks back once and in order in 1 session" in said
    rows = (files("collector") / "data" / "selftest" / "operators.csv").read_text(encoding="utf-8")
    count = len(list(csv.reader(io.StringIO(rows)))) - 1  # below their header
    assert count > 160 and f"ok    operators   {count} operators measured" in said
    assert "skip  layouts     cpu has nothing like it" in said
    assert "5 checks, 0 failed; report: opmeter-selftest.zip" in said
    with zipfile.ZipFile(here / "opmeter-selftest.zip") as report:
        verdicts = json.loads(report.read("selftest.json"))
        assert [check["name"] for check in verdicts["checks"]] == list(only)
        assert {"failures/session.log", "marks-queue/op_summary.csv"} <= set(report.namelist())
        assert verdicts["proved"] == []  # no profiler of a cpu tells what a launch was given


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tpu"], "'tpu': npu, cuda, cpu is wanted"),
        (["cpu", "--device", "3"], "--device 3: here are 1 device"),
        (["cpu", "--report", "."], "the name of a file is wanted for --report"),
        (["cpu", "--only", "physic"], "--only 'physic': one of environment"),
    ],
)
def test_a_mistake_is_answered_in_one_line(here, words, said):
    _, _, error = asked(*words)
    assert said in str(error)
    assert not (here / "opmeter-selftest.zip").exists()
