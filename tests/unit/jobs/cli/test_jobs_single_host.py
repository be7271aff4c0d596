"""The verbs of the single-host flow as a user meets them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.database.tree import read_kernel_file
from collector.singlehost.parse import parse_profile
from tests.fixtures.profiles.variants import Told, write_profile

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
    """A parsed tree of four small rows: three to measure, and one that nobody can."""
    rows = [
        Told(shapes=ADD, out_shapes='"8,8"', duration="2.000"),
        Told(shapes='"4;4"', out_shapes='"4"'),
        Told("Mul", shapes=ADD, out_shapes='"8,8"'),
        Told("NobodyKnows", shapes=ADD, out_shapes='"8,8"'),
    ]
    write_profile(tmp_path / "serving", "K6", rows)
    parse_profile([tmp_path / "serving"], tmp_path / "tree")
    return tmp_path / "tree"


def test_a_profile_of_nothing_is_bad_input(tmp_path):
    (tmp_path / "empty").mkdir()
    write_profile(tmp_path / "header", "K5", [])
    here = ("parse", "--database-path", "t", "--profiling-path")
    for folder, words in (("empty", "no kernel_details"), ("header", "a header and no rows")):
        done = opmeter(*here, folder, cwd=tmp_path)
        assert (done.returncode, words in done.stderr) == (2, True), done.stdout + done.stderr
    done = opmeter(*here, "header", "--skip-bad-rows", cwd=tmp_path)
    assert (done.returncode, "nothing was kept" in done.stderr) == (1, True)
    assert not (tmp_path / "t").exists()


def durations(tree, kernel):
    return [row.get(AVERAGE, "") for row in read_kernel_file(tree / f"{kernel}.csv").rows]


def test_a_parse_says_what_it_left_out_and_fails_where_nothing_was_kept(tmp_path):
    bad = tmp_path / "bad" / "kernel_details.csv"
    bad.parent.mkdir()
    bad.write_bytes(b"\0")
    here = ("parse", "--database-path", "tree", "--profiling-path")
    assert opmeter(*here, "bad", cwd=tmp_path).returncode == 2
    done = opmeter(*here, "bad", "--skip-bad-rows", cwd=tmp_path)
    assert (done.returncode, "nothing was kept" in done.stderr) == (1, True)
    assert "skipped a whole file: bad/kernel_details.csv:1: " in done.stdout
    write_profile(tmp_path / "good", "K5", [Told()])
    write_profile(tmp_path / "copy", "O2", [Told()])
    more = ("--profiling-path", "good", "--profiling-path", "copy", "--skip-bad-rows")
    done = opmeter(*here, "bad", *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "skipped a whole file: bad/kernel_details.csv:1: " in done.stdout
    assert "is of the same run as good/kernel_details.csv: 1 of its rows counts once" in done.stdout
    assert "1 row added" in done.stdout


@pytest.mark.torch
def test_rows_of_a_tree_are_measured_and_written_back(tree, tmp_path):
    here = ("microbench", "--database-path", "tree", "--backend", "cpu")
    locks = {"OPMETER_LOCKS": str(tmp_path / "locks")}
    count = {"MSMODELING_OP_REPLAY_REPEAT_COUNT": "5"}
    done = opmeter(*here, "--ops", "Add", "NobodyKnows", cwd=tmp_path, **locks, **count)
    assert done.returncode == 0, done.stderr
    assert all(float(us) > 0 for us in durations(tree, "Add"))
    assert (durations(tree, "Mul"), durations(tree, "NobodyKnows")) == ([""], [""])
    assert "tree: 2 rows written, 0 added, 0 left alone" in done.stdout
    assert "no operator is declared for NobodyKnows" in done.stdout
    (certificates,) = (tree / "reports").glob("replay_certificates_*.csv")
    with certificates.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["outcome"], row["n_expected"]) for row in rows] == [("ok", "5")] * 2
    before = durations(tree, "Add")
    again = opmeter(*here, "--update-mode", "missing-only", cwd=tmp_path, **locks)
    assert again.returncode == 0 and "0 rows written, 0 added, 4 left alone" in again.stdout
    assert durations(tree, "Add") == before


@pytest.mark.torch
def test_the_first_failure_ends_it_where_that_is_wanted(tree, tmp_path):
    huge = ["1000000,1000000,100;1000000,1000000,100", "1000000,1000000,100"]
    path = tree / "Add.csv"
    path.write_bytes(path.read_bytes().replace(b"4;4", huge[0].encode()))
    path.write_bytes(path.read_bytes().replace(b'"4"', f'"{huge[1]}"'.encode()))
    done = opmeter(
        *("microbench", "--database-path", "tree", "--backend", "cpu", "--repeat-count", "3"),
        "--fail-fast",
        cwd=tmp_path,
        OPMETER_LOCKS=str(tmp_path / "locks"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed: oom, " in done.stdout and ": Add 1000000,1000000,100" in done.stdout


def test_a_profile_fills_a_tree_without_any_npu_software(tree, tmp_path):
    folder = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    rows = [Told(shapes=ADD, out_shapes='"8,8"', duration=us) for us in ("3.000", "4.000")]
    write_profile(folder, "O3", rows)
    here = ("microbench", "--database-path", "tree", "--prof-path", "PROF_1")
    done = opmeter(*here, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert durations(tree, "Add") == ["3.500000", ""]
    assert "1 row written" in done.stdout and "no launch for 3 rows" in done.stdout
    pruned = opmeter(*here, "--prune-empty-duration-rows", cwd=tmp_path)
    assert pruned.returncode == 0 and "removed" not in pruned.stdout  # all have the profile's
    assert len(list((tree / "reports").glob("replay_report_*.md"))) == 2


def test_a_tree_is_found_by_its_device_and_versions(tree, tmp_path):
    name = "vllm0.18.0_torch2.9.0_cann8.5"
    whole = tmp_path / "ATLAS_800_A3_752T_128G_DIE" / "vllm_ascend" / name
    device = ("--device", "ATLAS_800_A3_752T_128G_DIE")
    parts = ("--vllm-version", "0.18.0", "--torch-version", "2.9.0+cpu", "--cann-version", "8.5")
    for versions in (parts, ("--vllm-version", name)):
        done = opmeter("parse", "--profiling-path", "serving", *device, *versions, cwd=tmp_path)
        assert done.returncode == 0 and (whole / "Add.csv").exists(), done.stderr
    done = opmeter("microbench", *device, *parts, "--backend", "cpu", cwd=tmp_path)
    assert done.returncode == 2 and "this tree is of ATLAS_800_A3_752T_128G_DIE" in done.stderr


def test_values_of_a_running_model_are_joined(tmp_path):
    shapes = "8,4,128;9,128,128;9,128,128;;;2;2" + ";" * 24
    row = Told("FusedInferAttentionScore", f'"{shapes}"', out_shapes='"8,4,128"')
    write_profile(tmp_path / "serving", "K6", [row])
    opmeter("parse", "--profiling-path", "serving", "--database-path", "tree", cwd=tmp_path)
    value = {"query_shape": [8, 4, 128], "key_shape": [9, 128, 128], "value_shape": [9, 128, 128]}
    value |= {"actual_seq_lengths_kv": [3, 5], "atten_mask_shape": [], "block_table_shape": None}
    (tmp_path / "values.jsonl").write_text(json.dumps(value) + "\n")
    where = ("--database-path", "tree", "--jsonl-path", "values.jsonl")
    done = opmeter("fia-backfill", *where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (told,) = read_kernel_file(tmp_path / "tree" / "FusedInferAttentionScore.csv").rows
    assert told["Runtime avg_seq_len"] == "4.000000"
    assert told["Runtime metadata_completeness"] == "runtime_values_dumped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("microbench",), "which tree?"),
        (("microbench", "--database-path", "tree"), "no NPU to measure on"),
        (("microbench", "--database-path", "tree", "--backend", "tpu"), "npu, cuda, cpu is wanted"),
        (("microbench", "--database-path", "none", "--backend", "cpu"), "`opmeter parse` makes"),
        (
            ("microbench", "--database-path", "tree", "--backend", "cpu", "--op", "Adds"),
            "no file of kernel type 'Adds'; did you mean 'Add'?; there are: Add, Mul, NobodyKnows",
        ),
        (
            ("microbench", "--database-path", "tree", "--update-mode", "some"),
            "--update-mode 'some': all or missing-only is wanted",
        ),
        (
            ("microbench", "--database-path", "tree", "--dispatch-ffn-combine-ep-size", "16"),
            "--dispatch-ffn-combine-ep-size: DispatchFFNCombine needs several ranks",
        ),
        (
            ("microbench", "--database-path", "tree", "--prof-path", "none"),
            "no such file or folder",
        ),
        (("parse", "--database-path", "tree"), "--profiling-path PROFILE is wanted"),
        (("parse", "--bundled", "nothing", "--database-path", "t"), "no bundled sample 'nothing'"),
        (("fia-backfill", "--jsonl-path", "x", "--database-path", "tree"), "cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tree, tmp_path, arguments, words):
    done = opmeter(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and words in lines[0], done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profiling-path", ""], "--profiling-path is empty: the path of a profile is wanted"),
        (["serving"], "'serving' stands alone: --profiling-path serving is meant?"),
    ],
)
def test_a_path_that_is_none_or_has_no_option_gets_a_sentence(tmp_path, words, said):
    done = opmeter("parse", "--database-path", "tree", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
