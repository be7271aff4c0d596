"""The command as a user sees it: what it loads, what it prints, how it ends."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collector.database.merge import CREATE, merge_plans
from collector.model import keys
from collector.ranks.collective import OPERATIONS
from collector.store.file import FileStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.jobs.cli.in_process import opmeter_here
from tests.unit.jobs.printed import missing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
HEAVY = (
    *("torch", "kubernetes", "boto3", "pandas", "scipy", "sklearn", "pyarrow", "plotly"),
    *("prometheus_client", "psutil"),
)


def opmeter(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(cwd or ROOT)},
    )


def test_the_package_of_the_api_is_the_command_too(tmp_path):
    words = [sys.executable, "-m", "opmeter", "db", "log", "--root", str(tmp_path / "none")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    here = opmeter_here(*words[3:])
    assert (done.returncode, done.stderr) == (2, here.stderr) and here.returncode == 2


def test_the_packages_are_this_projects():
    import collector
    import jobs

    for package in (collector, jobs):
        assert Path(package.__file__).is_relative_to(ROOT)


@pytest.mark.parametrize(
    "statement", ["import collector, jobs", "import jobs.cli", "import collector.worker.__main__"]
)
def test_heavy_packages_are_not_imported(statement):
    code = f"import sys; {statement}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_selftest_does_not_import_torch():
    """In an image `import torch` loads torch_npu, which may end the process: sessions do it."""
    code = "import sys, jobs.selftest.checks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        (("run", "nothing.yaml"), ["'nothing.yaml'"]),
        (("run", "bad.yaml"), ["bad.yaml:2: ", "'sourcs'", "'sources'"]),
        (("plan", "empty.yaml"), ["empty.yaml:1: "]),
        (("db", "path"), ["opmeter-data"]),
        (("db", "pull", "tree"), ["opmeter-data"]),
        (("status", "llama"), ["'llama'"]),
        (("ops", "Ad"), ["'Ad'"]),
        (("run", "quickstart", "--root", "ftp://x/y"), ["--root: ", "s3://"]),
        (("run", "quickstart", "--root", "s3://a/b"), ["--root: ", "1", "3"]),
        (("launch", "quickstart"), ["--image", "--store"]),
        (("launch", "quickstart", "--image", "x"), ["--store"]),
        (("run", "stored.yaml"), ["stored.yaml:4: store: ", "1", "3"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, arguments, data):
    (tmp_path / "bad.yaml").write_text("campaign: a\nsourcs: []\nbackend: cpu\n")
    (tmp_path / "empty.yaml").write_text("")
    sources = "sources: [{bundled: quickstart}]"
    (tmp_path / "stored.yaml").write_text(
        f"campaign: a\n{sources}\nbackend: cpu\nstore: s3://a/b\n"
    )
    done = opmeter_here(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and missing(lines[0], data) == [], done.stderr


def test_one_cause_has_one_exit_code(tmp_path):
    sources = "sources: [{bundled: quickstart}]\nbackend: npu\n"
    (tmp_path / "npu.yaml").write_text(f"campaign: a\n{sources}")
    (tmp_path / "nothing").mkdir()
    no_device = (
        *("stack --backend npu", "stack --backend cuda", "selftest npu", "selftest cuda"),
        *("run npu.yaml", "plan npu.yaml --dry-run", "doctor --together npu"),
    )
    no_store = (
        *("status", "status --json", "status a", "ops --root nowhere", "ops Add --root nowhere"),
        *("db log", "db path", "db verify", "db diff 1 2", "db quality", "db pull t", "db merge a"),
        *("coverage --model qwen3-32b", "logs a", "ops --root file:///nowhere"),
    )
    for words in (*no_device, *no_store):
        done = opmeter_here(*words.split(), cwd=tmp_path, PATH=str(tmp_path / "nothing"))
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert "No such command" not in done.stderr, words
    assert not (tmp_path / "opmeter-data").exists()


def test_command_in_a_process_equals_the_command_called_directly(tmp_path):
    for words in (("ops", "Ad"), ("run", "nothing.yaml"), ("comm", "--dtype", "x"), ("--version",)):
        process, here = (run(*words, cwd=tmp_path) for run in (opmeter, opmeter_here))
        assert process.returncode == here.returncode
        assert (process.stdout, process.stderr) == (here.stdout, here.stderr)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sources: [{profile: nowhere}]", "nowhere: "),
        ("sources: [{bundled: quickstart}]\nop_mapping: odd.yaml", "odd.yaml:2: "),
        ("sources: [{bundled: quickstart}]\noperators: [Ad]", "'Add'"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "plan"])
def test_invalid_input_is_refused_before_files_are_written(tmp_path, verb, line, words):
    (tmp_path / "c.yaml").write_text(f"campaign: a\nbackend: cpu\n{line}\n")
    (tmp_path / "odd.yaml").write_text("a: [1\n")
    done = opmeter_here(verb, "c.yaml", cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "odd.yaml"]


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        (("db", "log"), keys.commit(1)),
        (("db", "path", "--version", "1"), keys.commit(1)),
        (("db", "pull", "tree", "--version", "2"), "manifest.json"),
        (("db", "quality"), ".parquet"),
        (("db", "merge", "made"), "manifest.json"),
        (("run", "quickstart"), keys.commit(1)),
    ],
)
def test_damaged_database_exits_with_1_and_a_hint(tmp_path, arguments, lost):
    store = FileStore(tmp_path / "store")
    for number in (1, 2):
        records = [add_record(number)]
        shard = MadeShard(f"s{number}", records, [answered(records, 5.0)])
        write_campaign(store, MadePlan([shard], number=number, head_commit=number - 1))
        merge_plans(store, [("made", number)], guard=CREATE, author="test")
    harmed = [i.key for i in store.list("db/") if i.key.endswith(lost)][-1]
    store.delete(harmed)
    done = opmeter(*arguments, "--root", tmp_path / "store", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    *_, line = done.stderr.strip().splitlines()
    assert harmed in line and "opmeter db verify" in line


def test_ops_lists_the_operators_that_can_be_replayed(tmp_path):
    done = opmeter_here("ops", cwd=tmp_path)
    assert done.returncode == 0
    header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["kernel", "API", "takes", "environment", "state"]
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert found["RmsNorm"]["API"] == "torch_npu.npu_rms_norm"
    assert found["RmsNorm"]["environment"] == "torch_npu" and found["Add"]["environment"] == "torch"
    assert all(row["takes"] and row["state"] for row in found.values())
    one = opmeter_here("ops", "RmsNorm", cwd=tmp_path)
    assert one.returncode == 0 and re.search(
        r"^signature +x.*gamma", one.stdout, flags=re.MULTILINE
    )


def test_ops_names_the_command_that_measures_each_collective(tmp_path):
    done = opmeter_here("ops", cwd=tmp_path)
    states = {line.split("\t")[0]: line.split("\t")[-1] for line in done.stdout.splitlines()}
    assert "`opmeter comm dfc`" in states["DispatchFFNCombine"]
    assert "`opmeter comm dfc`" in states["DispatchFFNCombineBF16"]
    for name, one in OPERATIONS.items():
        assert f"`opmeter comm --ops {name}`" in states[one.kernel_type]
    one = opmeter_here("ops", "hcom_alltoallv_", cwd=tmp_path)
    assert one.returncode == 0
    assert "`opmeter comm --ops all_to_all`" in one.stdout
    sent = opmeter_here("ops", "MoeDistributeDispatchV2", cwd=tmp_path)
    assert "`EP Size`" in sent.stdout


def test_doctor_checks_this_machine_and_the_store(tmp_path):
    done = opmeter("doctor", "--root", tmp_path / "data", cwd=tmp_path)
    checks = {line.split()[1]: line for line in done.stdout.splitlines()}
    assert "CPU_" in checks["processor"]
    assert checks["store"].startswith("ok ") and f"{tmp_path}/data" in checks["store"]
    assert done.returncode == int("FAIL" in done.stdout)


@pytest.mark.parametrize("address", ["s3://me:hush@bucket/x", "s3://bucket/x?secret=hush"])
def test_doctor_reports_an_invalid_address_once(tmp_path, address):
    done = opmeter_here("doctor", "--root", address, cwd=tmp_path)
    lines = done.stdout.splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("FAIL  store "))
    assert done.returncode == 1 and "hush" not in done.stdout
    assert not lines[at + 1].startswith(" ")  # as a line with advice would


def test_command_without_its_streams_its_folder_or_memory_ends_in_one_line(tmp_path):
    gone = 'mkdir "$PWD/gone"; cd "$PWD/gone"; rmdir "$PWD"; '
    for shell, code, words in (
        ("opmeter --version >&-", 0, ""),
        ("opmeter --version <&- >&- 2>&-", 0, ""),
        ("opmeter --version >/dev/full", 1, "No space left on device; free space"),
        ("opmeter --help >/dev/full 2>&1", 1, ""),
        (f"{gone}opmeter db log", 1, "the working folder: it does not exist any more"),
        ("ulimit -v 120000; opmeter plan quickstart --dry-run", 1, "out of memory"),
    ):
        command = f'opmeter() {{ "{sys.executable}" -m jobs.cli "$@"; }}; {shell}'
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert run.returncode == code, (shell, run.stderr)
        assert len(run.stderr.splitlines()) <= 1 and words in run.stderr, (shell, run.stderr)
