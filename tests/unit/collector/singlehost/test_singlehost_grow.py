"""A tree that gets more rows: the added and the unchanged ones."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.database.layout import case_cells, csv_bytes, database_columns
from collector.database.tree import read_kernel_file
from collector.profiles.bundled import write_bundled_profile
from collector.singlehost import grow as growing
from collector.singlehost.grow import GridOptions
from collector.singlehost.parse import parse_profile
from collector.singlehost.version_files import read_tree
from collector.workloads import model_rows
from collector.workloads.models import find_decoder
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
RELEASE = "vllm-ascend-0.18"
MODELS = ("deepseek-v3", "qwen3-32b")

_ATTENTION = (
    "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats\n"
    '"2,4,128;64,128,128;64,128,128",DT_BF16;DT_BF16;DT_BF16,ND;ND;ND,"2,4,128",DT_BF16,ND\n'
)


def options(*, rows=5, seed=0, largest_gib=32.0, models=()):
    return GridOptions(rows, seed, largest_gib, tuple(map(find_decoder, models)), RELEASE)


def grow(folder, message, **more):
    return tuple(growing.grow_tree(folder, message, **more))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parsed")
    profile = folder / "profile"
    profile.mkdir()
    parse_profile([write_bundled_profile("quickstart", profile)], folder / "tree")
    return folder / "tree"


@pytest.fixture
def tree(parsed, tmp_path):
    """A copy for each test to extend."""
    return Path(shutil.copytree(parsed, tmp_path / "tree"))


@pytest.fixture(scope="module", autouse=True)
def few_models():
    """Two represent all bundled models, whose rows would take seconds."""
    with pytest.MonkeyPatch.context() as patch, nothing_kept():
        patch.setattr(growing, "bundled_configs", lambda: MODELS)
        yield


@pytest.fixture
def few_passes(monkeypatch):
    """Return rows of fewer lengths than available."""
    with nothing_kept():
        monkeypatch.setattr(model_rows, "_PREFILL", ((1, 2), (256, 8192)))
        monkeypatch.setattr(model_rows, "_DECODE", ((1, 4), (512, 4100)))
        yield


@contextmanager
def nothing_kept():
    """Isolate the caches of derived models of the block."""
    kept = (growing._model_rows, growing._sizes)
    for one in kept:
        one.cache_clear()
    yield
    for one in kept:
        one.cache_clear()


def only(tree, *kernels):
    """Return the tree with only the files of these kernels."""
    for path in tree.glob("*.csv"):
        if path.stem not in kernels:
            path.unlink()
    assert {path.stem for path in tree.glob("*.csv")} == set(kernels)


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.csv"))}


def test_rows_are_added_after_the_existing_ones(tree):
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


def test_repeated_growth_adds_missing_rows_and_finally_nothing(tree):
    """Kernels whose sizes are those of a model, some with refused or existing points, and one
    without a pattern."""
    only(tree, "ConcatD", "MatMulV2", "NonZero", "SwiGlu", "TensorMove")
    every = options(rows=None, models=("qwen3-32b",))
    first = sum(len(one.chosen.records) for one in grow(tree, every) if one.chosen)
    assert first > 1000
    there = content(tree)
    assert not sum(len(one.chosen.records) for one in grow(tree, every) if one.chosen)
    assert content(tree) == there


def test_same_request_adds_nothing_and_another_seed_does(tree):
    grow(tree, options(rows=7))
    there = content(tree)
    assert not any(one.chosen.records for one in grow(tree, options(rows=7)) if one.chosen)
    assert content(tree) == there
    assert any(one.chosen.records for one in grow(tree, options(rows=7, seed=1)) if one.chosen)


def test_rows_missing_after_a_kill_are_added_by_the_same_request(tree):
    before = content(tree)
    grow(tree, options(rows=7))
    whole = content(tree)
    for name in sorted(whole)[::2]:  # as if these had not been written yet
        (tree / name).write_bytes(before[name])
    grow(tree, options(rows=7))
    assert content(tree) == whole


class Interloper(tuple):
    """Models whose first use makes another command write a row into the tree."""

    def __bool__(self):
        path = self[0]
        path.write_text(path.read_text().rstrip("\n") + "\n" + path.read_text().splitlines()[-1])
        return False


def test_concurrent_change_of_the_tree_is_not_lost(tree):
    only(tree, "MatMulV2")
    path = tree / "MatMulV2.csv"
    before = path.read_text().rstrip("\n")
    with pytest.raises(BadInput, match=naming(f"{tree}:", path.stem)):
        grow(tree, GridOptions(5, 0, 32.0, Interloper([path]), RELEASE))
    assert path.read_text() == before + "\n" + before.splitlines()[-1]


@pytest.mark.parametrize("rows", [5, None])
def test_row_with_filled_in_settings_is_not_added_again(tmp_path, rows):
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


def test_attention_without_a_model_has_the_rows_of_all_models(tmp_path, few_passes):
    (tmp_path / "FusedInferAttentionScore.csv").write_text(_ATTENTION)
    found = []
    for models in ((), *((name,) for name in MODELS)):
        (grown,) = grow(tmp_path, options(rows=None, models=models), write=False)
        found.append({record.case_id for record in grown.chosen.records})
    any_model, one, other = found
    assert any_model == one | other and len(any_model) > max(len(one), len(other)) > 15


def test_kernel_without_a_pattern_has_rows_of_the_models_that_launch_it(tmp_path, few_passes):
    for kernel in ("LayerNormV3", "NonZero"):
        cells = [case_cells(record) for record in rows_of(kernel)]
        columns = database_columns({name for row in cells for name in row})
        (tmp_path / f"{kernel}.csv").write_bytes(csv_bytes(columns, cells))
    sparse = options(models=("deepseek-v3.2",))
    found = {one.kernel_type: one for one in grow(tmp_path, sparse, write=False)}
    assert found["LayerNormV3"].chosen.records
    assert found["NonZero"].chosen is None and found["NonZero"].reason


def test_same_seed_makes_the_same_bytes_in_two_processes(tree, tmp_path):
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


def test_rows_of_a_kernel_are_independent_of_the_other_files(tree):
    alone = tree.parent / "alone"
    alone.mkdir()
    (alone / "SwiGlu.csv").write_bytes((tree / "SwiGlu.csv").read_bytes())
    grow(tree, options())
    grow(alone, options())
    assert (alone / "SwiGlu.csv").read_bytes() == (tree / "SwiGlu.csv").read_bytes()


def test_attention_gets_rows_of_models_that_differ_only_in_lengths(tmp_path):
    path = tmp_path / "FusedInferAttentionScore.csv"
    path.write_text(_ATTENTION)
    grow(tmp_path, options(rows=None, models=("qwen3-32b",)))
    rows = read_kernel_file(path).rows[1:]
    lengths = {(row["Input Shapes"], row["Runtime actual_seq_lengths_kv_values"]) for row in rows}
    assert len(lengths) == len(rows) > 1000
    pages = {shapes for shapes, of in lengths if of.split(",")[0] in ("4100", "4224")}
    assert len(pages) < 80  # 33 pages each: the shapes are the same, the lengths are not
    assert all(row["Runtime num_heads"] and row["Runtime avg_seq_len"] for row in rows)


def test_rows_above_the_memory_limit_are_not_added(tree):
    only(tree, "Add")
    small = grow(tree, options(rows=None, largest_gib=0.001), write=False)
    any_size = grow(tree, options(rows=None, largest_gib=None), write=False)
    ((one, other),) = (pair for pair in zip(small, any_size, strict=True) if pair[0].chosen)
    assert one.chosen.too_large and not other.chosen.too_large
    assert len(one.chosen.records) + one.chosen.too_large == len(other.chosen.records)


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(BadInput, match=naming(f"{tmp_path}:", "{KernelType}.csv")):
        grow(tmp_path, options())
