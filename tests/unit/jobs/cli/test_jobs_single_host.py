"""The commands of the single-host flow as a user calls them."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collector.codec.table import table_bytes
from collector.database.tree import read_kernel_file
from collector.model.vocabulary import EP_SIZE
from collector.ranks.experts import ExpertCall
from collector.singlehost.parse import parse_profile
from tests.fixtures.profiles.variants import ProfileRow, write_profile
from tests.unit.jobs.cli.in_process import opmeter_here
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
AVERAGE = "Average Duration(us)"
ADD = '"8,8;8,8"'


def opmeter(*arguments, cwd, **env):
    path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(cwd), **env},
    )


@pytest.fixture
def tree(tmp_path):
    """A parsed tree of four small rows: three to measure, and one that cannot be measured."""
    rows = [
        ProfileRow(shapes=ADD, out_shapes='"8,8"', duration="2.000"),
        ProfileRow(shapes='"4;4"', out_shapes='"4"'),
        ProfileRow("Mul", shapes=ADD, out_shapes='"8,8"'),
        ProfileRow("NobodyKnows", shapes=ADD, out_shapes='"8,8"'),
    ]
    write_profile(tmp_path / "serving", "K6", rows)
    parse_profile([tmp_path / "serving"], tmp_path / "tree")
    return tmp_path / "tree"


def test_profile_without_files_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    write_profile(tmp_path / "header", "K5", [])
    here = ("tree", "parse", "--database-path", "t", "--profile")
    for folder, words in (("empty", "no kernel_details"), ("header", ".csv:1: ")):
        done = opmeter_here(*here, folder, cwd=tmp_path)
        assert (done.returncode, words in done.stderr) == (2, True), done.stdout + done.stderr
    done = opmeter_here(*here, "header", "--skip-bad-rows", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr
    assert not (tmp_path / "t").exists()


def rows_of(printed):
    """Return how many rows of the tree were written, added and left unchanged."""
    (line,) = [line for line in printed.splitlines() if line.startswith("tree: ")]
    return numbers(line)[:3]


def durations(tree, kernel):
    return [row.get(AVERAGE, "") for row in read_kernel_file(tree / f"{kernel}.csv").rows]


def test_parse_reports_skipped_rows_and_fails_if_none_is_left(tmp_path):
    bad = tmp_path / "bad" / "kernel_details.csv"
    bad.parent.mkdir()
    bad.write_bytes(b"\0")
    here = ("tree", "parse", "--database-path", "tree", "--profile")
    assert opmeter_here(*here, "bad", cwd=tmp_path).returncode == 2
    done = opmeter_here(*here, "bad", "--skip-bad-rows", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr
    assert "bad/kernel_details.csv:1: " in done.stdout
    write_profile(tmp_path / "good", "K5", [ProfileRow()])
    write_profile(tmp_path / "copy", "O2", [ProfileRow()])
    more = ("--profile", "good", "--profile", "copy", "--skip-bad-rows")
    words = (*here[:-1], "bad", "--profiling-path", *more[1:])  # msmodeling's name of the option
    done = opmeter_here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "bad/kernel_details.csv:1: " in done.stdout
    lines = done.stdout.splitlines()
    assert any(re.search(r"^copy/.*good/kernel_details\.csv.*\b1\b", line) for line in lines)
    assert any(re.match(r"\D*\b1 row ", line) for line in lines)  # which is added


@pytest.mark.torch
def test_rows_of_a_tree_are_measured_and_written_back(tree, tmp_path):
    here = ("tree", "microbench", "--database-path", "tree", "--backend", "cpu")
    locks = {"OPMETER_LOCKS": str(tmp_path / "locks")}
    count = {"MSMODELING_OP_REPLAY_REPEAT_COUNT": "5"}
    done = opmeter(*here, "--ops", "Add", "NobodyKnows", cwd=tmp_path, **locks, **count)
    assert done.returncode == 0, done.stderr
    assert all(float(us) > 0 for us in durations(tree, "Add"))
    assert (durations(tree, "Mul"), durations(tree, "NobodyKnows")) == ([""], [""])
    assert rows_of(done.stdout) == ["2", "0", "0"]
    assert "NobodyKnows" in done.stdout
    (certificates,) = (tree / "reports").glob("replay_certificates_*.csv")
    with certificates.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["outcome"], row["n_expected"]) for row in rows] == [("ok", "5")] * 2
    before = durations(tree, "Add")
    again = opmeter(*here, "--update-mode", "missing-only", cwd=tmp_path, **locks)
    assert again.returncode == 0 and rows_of(again.stdout) == ["0", "0", "4"]
    assert durations(tree, "Add") == before


@pytest.mark.torch
def test_rows_of_experts_end_with_the_command_that_measures_them(tmp_path):
    calls = [ExpertCall(tokens, 64, 32, 8, 2, 2) for tokens in (8, 16)]
    parts = [call.cells for call in calls] + [{**calls[0].cells, EP_SIZE: ""}]
    (tmp_path / "tree").mkdir()
    path = tmp_path / "tree" / f"{calls[0].kernel}.csv"
    path.write_bytes(table_bytes(tuple(parts[0]), [list(cells.values()) for cells in parts]))
    done = opmeter_here(
        "tree", "microbench", "--database-path", "tree", "--backend", "cpu", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    *_, unknown, last = done.stdout.splitlines()
    assert "opmeter comm dfc" in unknown and "EP Size" in unknown
    assert last.startswith("to measure 2 rows over 2 ranks: opmeter comm dfc ")
    command = last.partition(": opmeter ")[2].split()
    command.remove("--do-run")
    planned = opmeter_here(*command, cwd=tmp_path)
    assert planned.returncode == 0 and "plan only" in planned.stdout, planned.stderr


def test_first_failure_ends_the_microbenchmark_on_request(tree, tmp_path):
    huge = ["1000000,1000000,100;1000000,1000000,100", "1000000,1000000,100"]
    path = tree / "Add.csv"
    path.write_bytes(path.read_bytes().replace(b"4;4", huge[0].encode()))
    path.write_bytes(path.read_bytes().replace(b'"4"', f'"{huge[1]}"'.encode()))
    done = opmeter(
        *(
            "tree",
            "microbench",
            "--database-path",
            "tree",
            "--backend",
            "cpu",
            "--repeat-count",
            "3",
        ),
        "--fail-fast",
        cwd=tmp_path,
        OPMETER_LOCKS=str(tmp_path / "locks"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert missing(done.stdout, ["oom", "Add 1000000,1000000,100"]) == []


def test_a_profile_fills_a_tree_without_any_npu_software(tree, tmp_path):
    folder = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    rows = [ProfileRow(shapes=ADD, out_shapes='"8,8"', duration=us) for us in ("3.000", "4.000")]
    write_profile(folder, "O3", rows)
    here = ("tree", "microbench", "--database-path", "tree", "--profile", "PROF_1")
    done = opmeter_here(*here, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert durations(tree, "Add") == ["3.500000", ""]
    assert rows_of(done.stdout)[0] == "1"
    assert ["3"] in map(numbers, done.stdout.splitlines())  # rows without a launch
    pruned = opmeter_here(*here, "--prune-empty-duration-rows", cwd=tmp_path)
    assert pruned.returncode == 0
    assert len(durations(tree, "Add")) == 2  # none is removed: all have the profile's
    assert len(list((tree / "reports").glob("replay_report_*.md"))) == 2


def test_a_tree_is_found_by_its_device_and_versions(tree, tmp_path):
    name = "vllm0.18.0_torch2.9.0_cann8.5"
    whole = tmp_path / "ATLAS_800_A3_752T_128G_DIE" / "vllm_ascend" / name
    device = ("--device", "ATLAS_800_A3_752T_128G_DIE")
    parts = ("--vllm-version", "0.18.0", "--torch-version", "2.9.0+cpu", "--cann-version", "8.5")
    for words in (parts, (*device, *parts), ("--vllm-version", name)):
        shutil.rmtree(whole, ignore_errors=True)
        done = opmeter_here("tree", "parse", "--profile", "serving", *words, cwd=tmp_path)
        assert done.returncode == 0 and (whole / "Add.csv").exists(), done.stderr
    done = opmeter_here("tree", "microbench", *device, *parts, "--backend", "cpu", cwd=tmp_path)
    assert done.returncode == 2 and "ATLAS_800_A3_752T_128G_DIE" in done.stderr


def test_parse_writes_an_op_mapping_and_keeps_a_users_own(tree, tmp_path):
    here = ("tree", "parse", "--profile", "serving", "--database-path", "tree")
    path = tree / "op_mapping.yaml"
    assert "op_mapping" not in opmeter_here(*here, cwd=tmp_path).stdout
    assert "aten.add.Tensor" in path.read_text() and "profiling.NobodyKnows" in path.read_text()
    path.write_text("mine: 1\n")
    done = opmeter_here(*here, cwd=tmp_path)
    (line,) = (line for line in done.stdout.splitlines() if "op_mapping.yaml" in line)
    assert done.returncode == 0 and line.startswith("tree/op_mapping.yaml: ")
    assert path.read_text() == "mine: 1\n"


def test_values_of_a_running_model_are_joined(tmp_path):
    shapes = "8,4,128;9,128,128;9,128,128;;;2;2" + ";" * 24
    row = ProfileRow("FusedInferAttentionScore", f'"{shapes}"', out_shapes='"8,4,128"')
    write_profile(tmp_path / "serving", "K6", [row])
    opmeter_here("tree", "parse", "--profile", "serving", "--database-path", "tree", cwd=tmp_path)
    value = {"query_shape": [8, 4, 128], "key_shape": [9, 128, 128], "value_shape": [9, 128, 128]}
    value |= {"actual_seq_lengths_kv": [3, 5], "atten_mask_shape": [], "block_table_shape": None}
    (tmp_path / "values.jsonl").write_text(json.dumps(value) + "\n")
    where = ("--database-path", "tree", "--jsonl-path", "values.jsonl")
    done = opmeter_here("tree", "fia-backfill", *where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (reported,) = read_kernel_file(tmp_path / "tree" / "FusedInferAttentionScore.csv").rows
    assert reported["Runtime avg_seq_len"] == "4.000000"
    assert reported["Runtime metadata_completeness"] == "runtime_values_dumped"


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        (("tree", "microbench"), ["--database-path", "--device"]),
        (("tree", "microbench", "--database-path", "tree"), ["NPU", "--backend cpu"]),
        (
            ("tree", "microbench", "--database-path", "tree", "--backend", "tpu"),
            ["'tpu'", "npu, cuda, cpu"],
        ),
        (
            ("tree", "microbench", "--database-path", "none", "--backend", "cpu"),
            ["none", "`opmeter tree parse`"],
        ),
        (
            ("tree", "microbench", "--database-path", "tree", "--backend", "cpu", "--op", "Adds"),
            ["'Adds'", "'Add'", "Add, Mul, NobodyKnows"],
        ),
        (
            ("tree", "microbench", "--database-path", "tree", "--update-mode", "some"),
            ["--update-mode", "'some'", "all", "missing-only"],
        ),
        (
            (
                "tree",
                "microbench",
                "--database-path",
                "tree",
                "--dispatch-ffn-combine-ep-size",
                "16",
            ),
            ["--dispatch-ffn-combine-*: ", "opmeter comm dfc"],
        ),
        (("tree", "microbench", "--database-path", "tree", "--profile", "none"), ["none: "]),
        (("tree", "parse", "--database-path", "tree"), ["PROFILE"]),
        (
            ("tree", "parse", "--bundled", "nothing", "--database-path", "t"),
            ["'nothing'", "quickstart"],
        ),
        (
            ("tree", "fia-backfill", "--jsonl-path", "x", "--database-path", "tree"),
            ["tree/FusedInferAttentionScore.csv: ", "No such file"],
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tree, tmp_path, arguments, data):
    done = opmeter_here(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and missing(lines[0], data) == [], done.stderr


def test_empty_path_is_refused_with_a_sentence(tmp_path):
    words = ("--database-path", "tree", "--profile", "")
    done = opmeter_here("tree", "parse", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert missing(done.stderr, ["--profile"]) == []
