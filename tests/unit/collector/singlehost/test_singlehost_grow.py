"""A tree that gets more rows: what is added, and what stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.database.columns import case_cells, csv_bytes, database_columns
from collector.database.tree import read_kernel_file
from collector.errors import BadInput
from collector.profiles.bundled import write_bundled_profile
from collector.shapes.models import find_decoder
from collector.singlehost import grow as growing
from collector.singlehost.grow import GridOptions
from collector.singlehost.parse import parse_profile
from collector.singlehost.tree_source import read_tree
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
RELEASE = "vllm-ascend-0.18"

_ATTENTION = (
    "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats\n"
    '"2,4,128;64,128,128;64,128,128",DT_BF16;DT_BF16;DT_BF16,ND;ND;ND,"2,4,128",DT_BF16,ND\n'
)


def options(*, rows=5, seed=0, largest_gib=32.0, models=()):
    return GridOptions(rows, seed, largest_gib, tuple(map(find_decoder, models)), RELEASE)


def grow(folder, said, **more):
    return tuple(growing.grow_tree(folder, said, **more))


@pytest.fixture
def tree(tmp_path):
    profile = tmp_path / "profile"
    profile.mkdir()
    parse_profile([write_bundled_profile("quickstart", profile)], tmp_path / "tree")
    return tmp_path / "tree"


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.csv"))}


def test_rows_are_added_behind_those_that_are_there(tree):
    before = {path.stem: read_kernel_file(path).rows for path in tree.glob("*.csv")}
    grown = {one.kernel_type: one for one in grow(tree, options())}
    for kernel_type, rows in before.items():
        after = read_kernel_file(tree / f"{kernel_type}.csv").rows
        chosen = grown[kernel_type].chosen
        assert list(after[: len(rows)]) == list(rows)
        assert len(after) == len(rows) + (len(chosen.records) if chosen else 0)
        assert not any(row.get("Average Duration(us)") for row in after[len(rows) :])
    assert len(grown["MatMulV2"].chosen.records) == 5
    assert grown["NonZero"].chosen is None
    ids = [record.case_id for record in read_tree(tree).records]
    assert len(set(ids)) == len(ids)


def test_another_time_adds_what_is_not_there_and_at_last_nothing(tree):
    every = options(rows=None, models=("qwen3-32b",))
    first = sum(len(one.chosen.records) for one in grow(tree, every) if one.chosen)
    assert first > 1000
    there = content(tree)
    assert not sum(len(one.chosen.records) for one in grow(tree, every) if one.chosen)
    assert content(tree) == there


def test_the_same_wish_over_again_adds_nothing_and_another_seed_does(tree):
    grow(tree, options(rows=7))
    there = content(tree)
    assert not any(one.chosen.records for one in grow(tree, options(rows=7)) if one.chosen)
    assert content(tree) == there
    assert any(one.chosen.records for one in grow(tree, options(rows=7, seed=1)) if one.chosen)


def test_what_a_kill_left_undone_is_added_by_the_same_wish(tree):
    before = content(tree)
    grow(tree, options(rows=7))
    whole = content(tree)
    for name in sorted(whole)[::2]:  # as if these had not been written yet
        (tree / name).write_bytes(before[name])
    grow(tree, options(rows=7))
    assert content(tree) == whole


class Interloper(tuple):
    """Models whose first look makes another command write a row into the tree."""

    def __bool__(self):
        path = self[0]
        path.write_text(path.read_text().rstrip("\n") + "\n" + path.read_text().splitlines()[-1])
        return False


def test_what_another_command_writes_meanwhile_is_not_lost(tmp_path):
    path = tmp_path / "FusedInferAttentionScore.csv"
    path.write_text(_ATTENTION)
    with pytest.raises(BadInput, match=naming(f"{tmp_path}:", path.stem)):
        grow(tmp_path, GridOptions(5, 0, 32.0, Interloper([path]), RELEASE))
    assert path.read_text().splitlines()[:2] == _ATTENTION.splitlines()
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("rows", [5, None])
def test_a_row_whose_settings_were_filled_is_like_the_one_it_was_made_after(tmp_path, rows):
    kernel = "KvRmsNormRopeCache"
    cells = [case_cells(record) for record in rows_of(kernel)]
    (tmp_path / f"{kernel}.csv").write_bytes(
        csv_bytes(database_columns({name for row in cells for name in row}), cells)
    )
    grow(tmp_path, options(rows=rows))
    there = content(tmp_path)
    (one,) = grow(tmp_path, options(rows=rows))
    assert not one.chosen.records and content(tmp_path) == there
    added = read_kernel_file(tmp_path / f"{kernel}.csv").rows[len(cells) :]
    assert added and all(row["Runtime cache_mode"] for row in added)


def test_without_models_attention_has_the_rows_of_all_that_are_known(tmp_path):
    (tmp_path / "FusedInferAttentionScore.csv").write_text(_ATTENTION)
    (any_model,) = grow(tmp_path, options(rows=None), write=False)
    (one_model,) = grow(tmp_path, options(rows=None, models=("qwen3-32b",)), write=False)
    assert len(any_model.chosen.records) > len(one_model.chosen.records) > 500


def test_the_same_seed_makes_the_same_bytes_in_two_fresh_processes(tree, tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from collector.singlehost.grow import GridOptions, grow_tree\n"
        f"list(grow_tree(Path(sys.argv[1]), GridOptions(7, 3, 32.0, (), {RELEASE!r})))"
    )
    found = []
    for name, hashing in (("one", "1"), ("two", "2")):
        folder = tmp_path / name
        folder.mkdir()
        for file, data in content(tree).items():
            (folder / file).write_bytes(data)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hashing}
        subprocess.run([sys.executable, "-c", program, str(folder)], env=env, check=True)
        found.append(content(folder))
    assert found[0] == found[1] != content(tree)


def test_a_kernel_gets_the_same_rows_whatever_others_there_are(tree):
    alone = tree.parent / "alone"
    alone.mkdir()
    (alone / "SwiGlu.csv").write_bytes((tree / "SwiGlu.csv").read_bytes())
    grow(tree, options())
    grow(alone, options())
    assert (alone / "SwiGlu.csv").read_bytes() == (tree / "SwiGlu.csv").read_bytes()


def test_attention_gets_rows_of_models_that_differ_in_lengths_alone(tree):
    (tree / "FusedInferAttentionScore.csv").write_text(_ATTENTION)
    grow(tree, options(rows=None, models=("qwen3-32b",)))
    rows = read_kernel_file(tree / "FusedInferAttentionScore.csv").rows[1:]
    lengths = {
        (row["Input Shapes"], row["Runtime actual_seq_lengths_kv_values"].split(",")[0])
        for row in rows
    }
    assert len(lengths) == len(rows) == 1270
    pages = {shapes for shapes, length in lengths if length in ("4100", "4224")}
    assert len(pages) < 80  # 33 pages each: the shapes are the same, the lengths are not
    assert all(row["Runtime num_heads"] and row["Runtime avg_seq_len"] for row in rows)


def test_no_row_is_added_that_the_memory_would_not_hold(tree):
    for path in tree.glob("*.csv"):
        if path.stem != "Add":
            path.unlink()
    small = grow(tree, options(rows=None, largest_gib=0.001), write=False)
    any_size = grow(tree, options(rows=None, largest_gib=None), write=False)
    ((one, other),) = (pair for pair in zip(small, any_size, strict=True) if pair[0].chosen)
    assert one.chosen.too_large and not other.chosen.too_large
    assert len(one.chosen.records) + one.chosen.too_large == len(other.chosen.records)


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(BadInput, match=naming(f"{tmp_path}:", "{KernelType}.csv")):
        grow(tmp_path, options())
