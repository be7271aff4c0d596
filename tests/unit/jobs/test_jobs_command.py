"""The command as a user meets it: what it loads, what it says, how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "kubernetes", "boto3", "pandas", "pyarrow", "plotly")


def opmeter(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(cwd or ROOT)},
    )


def test_the_packages_are_this_projects():
    import collector
    import jobs

    for package in (collector, jobs):
        assert Path(package.__file__).is_relative_to(ROOT)


@pytest.mark.parametrize("statement", ["import collector, jobs", "import jobs.cli"])
def test_nothing_heavy_is_loaded(statement):
    code = f"import sys; {statement}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_verb_explains_itself():
    for verb in ("run", "plan", "merge", "status", "parse", "ops", "doctor", "pull", "db"):
        done = opmeter(verb, "--help")
        assert done.returncode == 0 and "Usage" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "nothing.yaml"), "no file 'nothing.yaml'"),
        (("run", "bad.yaml"), "bad.yaml:2: unknown key 'sourcs'; did you mean 'sources'?"),
        (("plan", "empty.yaml"), "empty.yaml"),
        (("db", "path"), "no database at opmeter-data"),
        (("pull", "tree"), "no database at opmeter-data"),
        (("status", "llama"), "no campaign 'llama'"),
        (("ops", "Ad"), "no operator is declared for 'Ad'"),
        (("run", "quickstart", "--root", "ftp://x/y"), "ftp"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, arguments, words):
    (tmp_path / "bad.yaml").write_text("campaign: a\nsourcs: []\nbackend: cpu\n")
    (tmp_path / "empty.yaml").write_text("")
    done = opmeter(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and words in lines[0], done.stderr


def test_ops_lists_what_can_be_replayed(tmp_path):
    done = opmeter("ops", cwd=tmp_path)
    assert done.returncode == 0
    header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["kernel", "API", "takes", "environment", "state"]
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert found["RmsNorm"]["API"] == "torch_npu.npu_rms_norm"
    assert found["RmsNorm"]["environment"] == "torch_npu" and found["Add"]["environment"] == "torch"
    assert all(row["takes"] and row["state"] for row in found.values())
    one = opmeter("ops", "RmsNorm", cwd=tmp_path)
    assert one.returncode == 0 and "slot 1       gamma" in one.stdout


def test_doctor_checks_this_machine_and_the_store(tmp_path):
    done = opmeter("doctor", "--root", tmp_path / "data", cwd=tmp_path)
    assert "processor" in done.stdout and "one winner in each" in done.stdout
    assert done.returncode == int("FAIL" in done.stdout)
