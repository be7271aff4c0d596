"""`opmeter tree grid` as a user calls it."""

from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast

_ROW = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats\n"
    'dynamic,MIX_AIC,"""4,8;16,8""",DT_BF16;DT_BF16,ND;ND,"""4,16""",DT_BF16,ND\n'
)


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "MatMulV2.csv").write_text(_ROW)
    (tmp_path / "NonZero.csv").write_text(_ROW)
    return tmp_path


def grid(tree, *words):
    return invoked("tree", "grid", "--database-path", tree, *words)


def test_grid_reports_added_and_skipped_rows_by_kernel(tree):
    message = grid(tree, "--target-models", "Qwen/Qwen3-32B,deepseek-v3", "--rows", "10").stdout
    first, second, last = message.splitlines()
    assert first.startswith("MatMulV2") and numbers(first)[0] == "10"  # added
    assert numbers(first)[-2:] == ["10", "1480"]  # points looked at, of all
    assert second.split()[0] == "NonZero" and numbers(second) == []
    assert last.startswith("10 rows ") and last.endswith(f" {tree}")
    assert len((tree / "MatMulV2.csv").read_text().splitlines()) == 12


def test_patterns_of_a_file_are_used_for_their_kernels(tree, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("""\
patterns:
  one_column:
    axes: {r: [3, 5], c: [7]}
    ways: [{inputs: ["r, c", "2 * r, c"], outputs: ["r, 2 * r"]}]
    kernels: [MatMulV2]
""")
    done = grid(tree, "--patterns", path, "--rows", "0")
    assert done.exit_code == 0 and numbers(done.stdout.splitlines()[0])[0] == "2"
    rows = (tree / "MatMulV2.csv").read_text()
    assert "3,7;6,7" in rows and "5,7;10,7" in rows
    path.write_text(path.read_text().replace("2 * r, c", "2 * x, c"))
    error = grid(tree, "--patterns", path).exception
    assert isinstance(error, BadInput) and (error.path, error.line) == (str(path), 4)


@pytest.mark.thorough
def test_a_dry_run_writes_nothing(tree):
    message = grid(tree, "--rows", "0", "--dry-run", "--target-models", "qwen3-32b")
    assert message.stdout.splitlines()[-1].startswith("925 rows ")
    assert (tree / "MatMulV2.csv").read_text() == _ROW


def test_recording_of_a_user_gives_its_sizes(tree):
    name = "qwen3-32b_tp=8.json.gz"
    path = Path(__file__).parents[3] / "fixtures" / "recordings" / name
    message = grid(tree, "--rows", "0", "--dry-run", "--target-models", path).stdout
    assert message.splitlines()[-1].startswith("185 rows ")  # of five weights


def test_model_that_is_not_recorded_is_refused_before_a_file_is_written(tree, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    error = grid(tree, "--target-models", f"qwen3-32b,{tmp_path}/config.json").exception
    assert isinstance(error, BadInput) and f"model record {tmp_path}/config.json" in str(error)
    assert (tree / "MatMulV2.csv").read_text() == _ROW


@pytest.mark.thorough
def test_data_dir_option_of_msmodeling_is_accepted(tree):
    message = invoked("tree", "grid", "--data-dir", tree, "--rows", "10", "--dry-run")
    assert message.stdout == grid(tree, "--rows", "10", "--dry-run").stdout


@pytest.mark.thorough
def test_complete_tree_exits_with_0(tree):
    assert grid(tree, "--rows", "10").exit_code == 0
    again = grid(tree, "--rows", "10")
    first, *_, last = again.stdout.splitlines()
    assert again.exit_code == 0
    assert numbers(first)[0] == "0" and numbers(first)[-1] == "10"  # added, and already present
    assert last.startswith("0 rows ")


def test_tree_without_any_case_exits_with_1(tree):
    (tree / "MatMulV2.csv").unlink()
    assert grid(tree).exit_code == 1


@pytest.mark.thorough
def test_reason_for_no_case_is_printed(tree):
    (tree / "MatMulV2.csv").write_text(_ROW.replace("ND;ND", "ND;NC1HWC0"))
    message = grid(tree, "--rows", "10", "--target-models", "qwen3-32b")
    assert message.exit_code == 1
    assert missing(message.stdout, ["NC1HWC0", "input 2"]) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target-models", "dsv9"], "'dsv9'"),
        (["--target-models", ","], "--target-models"),
    ],
)
def test_invalid_grid_options_are_refused(tree, words, message):
    error = grid(tree, *words).exception
    assert isinstance(error, BadInput) and message in str(error)


def test_a_tree_must_be_named():
    assert isinstance(invoked("tree", "grid").exception, BadInput)


@pytest.mark.thorough
def test_density_standard_fills_large_gaps_once(tree):
    row = _ROW.splitlines()[1].replace('"""4,8;16,8""",', '"""%d,256;512,256""",')
    row = row.replace('"""4,16"""', '"""%d,512"""')
    rows = [row % (tokens, tokens) for tokens in (16, 32)]
    (tree / "MatMulV2.csv").write_text("\n".join([_ROW.splitlines()[0], *rows, ""]))
    message = grid(tree, "--standard", "density-v1").stdout.splitlines()
    assert message[0].startswith("MatMulV2") and numbers(message[0])[0] == "3"  # 20, 24 and 28
    assert message[-1].startswith("3 rows ")
    again = grid(tree, "--standard", "density-v1").stdout.splitlines()
    assert again[-1].startswith("0 rows ")
    for words in (["density-v9"], ["density-v1", "--target-models", "qwen3-32b"]):
        assert isinstance(grid(tree, "--standard", *words).exception, BadInput)


def test_reserve_that_leaves_no_memory_is_refused(tree):
    message = grid(tree, "--max-hbm-gb", "2", "--reserve-gb", "2")
    assert isinstance(message.exception, BadInput)
    assert missing(str(message.exception), ["--max-hbm-gb", "--reserve-gb", "2"]) == []
