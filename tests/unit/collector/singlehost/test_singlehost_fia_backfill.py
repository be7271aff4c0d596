"""Values dumped by a running model are joined to their rows of fused attention."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.database.layout import ATTENTION_COLUMNS
from collector.database.tree import KernelFile, read_kernel_file
from collector.singlehost.fia_backfill import backfill
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

KERNEL = "FusedInferAttentionScore"
SHAPES = "128,4,128;12307,128,128;12307,128,128;;2048,2048;128;2;;;;;;;;2,512" + ";" * 16
VALUES = {
    "query_shape": [128, 4, 128],
    "key_shape": [12307, 128, 128],
    "value_shape": [12307, 128, 128],
    "actual_seq_lengths_kv": [3593, 3594],
    "atten_mask_shape": [2048, 2048],
    "block_table_shape": [2, 512],
}


@pytest.fixture
def csv_path(tree):
    return tree.write(KERNEL, attention())


@pytest.fixture
def dump(tmp_path):
    def write(*values):
        path = tmp_path / "values.jsonl"
        lines = (v if isinstance(v, str) else json.dumps(v) for v in values)
        path.write_text("\n".join(lines))
        return path

    return write


def attention(shapes=SHAPES, **more):
    empty = {"Input Data Types": "DT_BF16", "Input Formats": "ND", "OP State": "static"}
    return {"Input Shapes": f'"{shapes}"', **empty, **more}


def test_row_gets_the_values_of_its_shapes(csv_path, dump):
    optional = {"num_heads": 4, "num_key_value_heads": 1, "sparse_mode": 3, "input_layout": "TND"}
    more = {
        "block_size": 128,
        "actual_seq_lengths": [64, 128],
        "block_table_valid_blocks": [29, 30],
    }
    done = backfill(csv_path, dump({**VALUES, **optional, **more}))
    assert (done.filled, done.made, done.rows_alone, done.values_alone) == (1, 1, [], [])
    file = read_kernel_file(csv_path)
    assert set(ATTENTION_COLUMNS) <= set(file.columns)
    (row,) = file.rows
    reported = {name.removeprefix("Runtime "): row[name] for name in ATTENTION_COLUMNS if row[name]}
    assert reported == {
        "actual_seq_lengths_shape": "2",
        "actual_seq_lengths_values": "64,128",
        "actual_seq_lengths_kv_shape": "2",
        "actual_seq_lengths_kv_values": "3593,3594",
        "avg_seq_len": "3593.500000",
        "block_table_shape": "2,512",
        "block_table_valid_blocks": "29,30",
        "num_heads": "4",
        "num_key_value_heads": "1",
        "sparse_mode": "3",
        "input_layout": "TND",
        "block_size": "128",
        "metadata_completeness": "runtime_values_dumped",
    }
    assert row["Input Shapes"] == f'"{SHAPES}"'


def test_several_values_make_several_rows_and_equal_ones_one(csv_path, dump):
    values = [{**VALUES, "actual_seq_lengths_kv": lengths} for lengths in ([1, 2], [3, 4], [1, 2])]
    done = backfill(csv_path, dump(*values), tag="dumped")
    assert (done.filled, done.made) == (1, 2)
    rows = read_kernel_file(csv_path).rows
    assert [row["Runtime actual_seq_lengths_kv_values"] for row in rows] == ["1,2", "3,4"]
    assert {row["Runtime metadata_completeness"] for row in rows} == {"dumped"}


def test_durations_of_another_case_are_cleared(tree, dump):
    numbers = {"Average Duration(us)": "5.0", "MicroBench aic_mac_ratio": "0.5"}
    profile = {"Profiling Average Duration(us)": "6.0", "Profiling Average aic_mac_ratio": "0.6"}
    path = tree.write(KERNEL, attention(**numbers, **profile))
    other = {**VALUES, "actual_seq_lengths_kv": [1, 2]}
    copy = path.with_name("copy.csv")
    assert backfill(path, dump(VALUES, other), copy).blanked == 1
    for row in read_kernel_file(copy).rows:
        assert {row[name] for name in (*numbers, *profile)} == {""}
    backfill(path, dump(VALUES))
    (row,) = read_kernel_file(path).rows
    assert {row[name] for name in numbers} == {""}
    assert row["Profiling Average Duration(us)"] == "6.0"


def test_second_run_changes_nothing_and_a_readded_row_joins_its_values(tree, dump):
    path = tree.write(KERNEL, attention())
    values = dump(VALUES, {**VALUES, "num_heads": 8})
    backfill(path, values)
    before = path.read_bytes()
    done = backfill(path, values)
    assert (done.filled, done.complete, path.read_bytes()) == (0, 2, before)
    rows = [*read_kernel_file(path).rows, attention()]
    tree.write(KERNEL, *rows)
    done = backfill(path, values)
    assert (done.filled, done.made, done.known) == (0, 0, 2)
    assert len(read_kernel_file(path).rows) == 2


def test_values_assumed_by_a_replay_are_replaced_by_real_ones(tree, dump):
    assumed = {
        "Runtime actual_seq_lengths_kv_values": "65536,65536",
        "Runtime block_table_valid_blocks": "512,512",
        "Runtime num_heads": "4",
        "Runtime metadata_completeness": "runtime_values",
        "Average Duration(us)": "900.0",
    }
    path = tree.write(KERNEL, attention(**assumed))
    assert backfill(path, dump({**VALUES, "query_shape": [1]})).complete == 1
    assert backfill(path, dump(VALUES)).filled == 1
    (row,) = read_kernel_file(path).rows
    assert row["Runtime actual_seq_lengths_kv_values"] == "3593,3594"
    assert (row["Runtime block_table_valid_blocks"], row["Runtime num_heads"]) == ("", "4")
    assert row["Average Duration(us)"] == ""


def test_unmatched_rows_and_values_are_reported(tree, dump):
    path = tree.write(KERNEL, attention(), attention("8,4,128;9,128,128;9,128,128;;;8;8"))
    done = backfill(path, dump(VALUES, {**VALUES, "query_shape": [1, 4, 128]}))
    assert (done.filled, done.values_alone) == (1, [2])
    assert [case.inputs[0].shape for case in done.rows_alone] == [(8, 4, 128)]
    assert done.made == 1 and len(read_kernel_file(path).rows) == 2


def test_row_without_mask_and_blocks_matches_values_without_them(tree, dump):
    path = tree.write(KERNEL, attention("8,4,128;9,128,128;9,128,128;;;2;2"))
    shapes = {"query_shape": [8, 4, 128], "key_shape": [9, 128, 128], "value_shape": [9, 128, 128]}
    none = {"atten_mask_shape": None, "block_table_shape": []}
    values = {**VALUES, **shapes, **none, "actual_seq_lengths_kv": [1152, 1]}
    assert backfill(path, dump(values)).filled == 1
    with pytest.raises(BadInput):  # 9 * 128 tokens
        backfill(path, dump({**values, "actual_seq_lengths_kv": [1153, 1]}))


def test_named_output_file_is_written_instead(csv_path, dump, tmp_path):
    before = csv_path.read_bytes()
    done = backfill(csv_path.parent, dump(VALUES), tmp_path / "out.csv")
    assert done.path == tmp_path / "out.csv" and done.path.exists()
    assert csv_path.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", ("JSON",)),
        ("[1]", ("JSON", "[1]")),
        ({"query_shape": [1]}, ("key_shape", "value_shape")),
        ({**VALUES, "num_heads": "many"}, ("num_heads",)),
        ({**VALUES, "key_shape": [1.5]}, ("key_shape",)),
        ({**VALUES, "input_layout": 3}, ("input_layout", 3)),
        ({**VALUES, "actual_seq_lengths_kv": []}, ("query_shape", "actual_seq_lengths_kv")),
    ],
)
def test_bad_lines_are_refused_by_number_and_nothing_is_written(csv_path, dump, line, named):
    before = csv_path.read_bytes()
    with pytest.raises(BadInput, match=naming("values.jsonl:2:", *named)):
        backfill(csv_path, dump(VALUES, line, VALUES))
    assert csv_path.read_bytes() == before


def test_calls_without_lengths_and_a_cut_last_line_of_a_log_are_counted(csv_path, dump):
    logged = {"operator": "npu_fused_infer_attention_score", "step": 1}
    without = {**logged, **VALUES, "actual_seq_lengths_kv": []}
    done = backfill(csv_path, dump({**logged, **VALUES}, without, logged, json.dumps(VALUES)[:40]))
    assert (done.filled, done.made, done.without_values) == (1, 1, [2, 4])


def test_missing_and_empty_files_are_refused(csv_path, dump, tmp_path):
    with pytest.raises(BadInput, match=naming("none.jsonl:", "No such file")):
        backfill(csv_path, tmp_path / "none.jsonl")
    with pytest.raises(BadInput, match=naming("none.csv:", "No such file")):
        backfill(tmp_path / "none.csv", dump(VALUES))
    with pytest.raises(BadInput, match=naming("values.jsonl:", "empty")):
        backfill(csv_path, dump(""))
    (tmp_path / "none.csv").write_text("")
    with pytest.raises(BadInput, match=naming("none.csv:", "empty")):
        backfill(tmp_path / "none.csv", dump(VALUES))


def test_second_run_into_a_copy_keeps_its_rows_and_counts_new_ones(csv_path, dump, tmp_path):
    copy = tmp_path / "copy.csv"
    done = backfill(csv_path, dump(VALUES), copy)
    assert (done.filled, done.made, done.complete, done.known) == (1, 1, 0, 0)
    (row,) = read_kernel_file(copy).rows
    measured = {**row, "Average Duration(us)": "7.000000"}
    copy.write_bytes(KernelFile(KERNEL, tuple(measured), (measured,)).as_bytes())
    done = backfill(csv_path, dump(VALUES), copy)
    assert (done.filled, done.made, done.complete, done.known) == (0, 0, 1, 1)
    assert read_kernel_file(copy).rows == (measured,)
    done = backfill(csv_path, dump(VALUES, {**VALUES, "actual_seq_lengths_kv": [1, 2]}), copy)
    assert (done.filled, done.made, done.complete, done.known) == (1, 1, 1, 1)
    assert len(read_kernel_file(copy).rows) == 2 and measured in read_kernel_file(copy).rows
    bare = read_kernel_file(csv_path).rows
    assert not any(row.get("Runtime actual_seq_lengths_kv_values") for row in bare)


def test_impossible_values_are_refused_with_their_line(csv_path, dump):
    before, line = csv_path.read_bytes(), json.dumps(VALUES)
    for bad in (
        line.replace("3593", "9" * 400),
        line.replace("3593", "9" * 5000),
        line.replace("[3593, 3594]", f'"3593,{"9" * 400}"'),
        line.replace("[3593, 3594]", '"3593,,3594"'),
        line.replace("[3593, 3594]", '"3_593,3594"'),
        line.replace("3593", str(512 * 128 + 1)),  # 512 blocks of 128 tokens for each request
        line.replace("{", '{"num_heads": 4, "num_heads": 8, ', 1),
        line.replace("{", '{"block_size": 4, ', 1),
        line.replace("{", '{"attn_state": "=1+1", ', 1),
    ):
        with pytest.raises(BadInput) as refused:
            backfill(csv_path, dump(VALUES, bad))
        assert refused.value.line == 2 and csv_path.read_bytes() == before, bad[:200]
    most = {**VALUES, "actual_seq_lengths_kv": [1, 512 * 128]}
    assert backfill(csv_path, dump(most)).made == 1
