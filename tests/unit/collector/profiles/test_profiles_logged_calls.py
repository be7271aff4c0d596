"""Rows that a profiler left incomplete get the cells and lengths of their calls."""

import json
import shutil
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.profiles.attention_values import read_attention_values
from collector.profiles.kernel_details import read_profile
from collector.profiles.logged_calls import LOG_FILE, read_calls
from tests.fixtures.profiles.database import write_database
from tests.fixtures.profiles.variants import unknown_inputs

pytestmark = pytest.mark.fast
COLUMNS = (
    "Step Id,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Input Shapes,"
    "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
)
UNKNOWN = ",".join(["N/A"] * 6)
CELLS = {
    "Input Shapes": '"4,8;8"',
    "Input Data Types": "FLOAT16;FLOAT16",
    "Input Formats": "ND;ND",
    "Output Shapes": '"4,8"',
    "Output Data Types": "FLOAT16",
    "Output Formats": "ND",
}
ATTENTION = '"""2,4,16;9,16,64;9,16,64;;;;;;;;;;;;2,4""",' + ",".join(
    [
        "DT_BF16;DT_BF16;DT_BF16;;;;;;;;;;;;INT32",
        "ND;ND;ND;;;;;;;;;;;;ND",
        '"""2,4,16"""',
        "DT_BF16",
        "ND",
    ]
)


def row(step, kernel, start, cells=UNKNOWN):
    return f"{step},{kernel}_1,{kernel},dynamic,AI_VECTOR_CORE,{start}.0,2.0,{cells}"


def call(step, kernel="muls_add_kernel", cells=CELLS, **more):
    line = {"step": step, "operator": f"triton.{kernel}", "kernels": [kernel], **more}
    return line | ({"cells": cells} if cells else {})


def attention(step, lengths):
    shapes = {"query_shape": [2, 4, 16], "key_shape": [9, 16, 64], "value_shape": [9, 16, 64]}
    shapes |= {"atten_mask_shape": [], "block_table_shape": [2, 4]}
    more = {"num_heads": 4, "input_layout": "TND", "actual_seq_lengths_kv": lengths}
    return call(step, "FusedInferAttentionScore", None, **shapes, **more)


def written(folder, rows, calls):
    """Write a run with a log; return its folder."""
    output = folder / "host_1_2_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text("\n".join([COLUMNS, *rows, ""]))
    lines = [one if isinstance(one, str) else json.dumps(one) for one in calls]
    (output.parent / LOG_FILE).write_text("\n".join(lines))
    return folder


def with_shape(shape):
    return {**CELLS, "Input Shapes": f'"{shape};8"'}


def test_rows_without_inputs_get_those_of_their_calls_in_order(tmp_path):
    rows = [row(2, "muls_add_kernel", 30), row(1, "muls_add_kernel", 20), row(1, "Add", 5)]
    rows.append(row(1, "muls_add_kernel", 9))  # before the other one: a longer text is later
    calls = [call(1, cells=with_shape("1,8")), call(1, cells=with_shape("2,8"))]
    calls.append(call(2, cells=with_shape("3,8")))
    profile = read_profile([written(tmp_path, rows, calls)])
    assert profile.report.unknown_input_rows == (("Add", 1),)
    assert [one.rows for one in profile.report.completed] == [3]
    found = {
        one.case.inputs[0].shape: one.profile.count for one in profile.records if one.case.inputs
    }
    assert found == {(1, 8): 1, (2, 8): 1, (3, 8): 1}
    assert profile.report.files[0].parent.name == "ASCEND_PROFILER_OUTPUT"


def test_an_archive_and_a_database_of_a_run_are_completed_too(tmp_path):
    rows = [row(1, "muls_add_kernel", 9)]
    folder = written(tmp_path / "run", rows, [call(1)])
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    assert not read_profile([Path(packed)]).report.unknown_input_rows
    (table,) = folder.rglob("kernel_details.csv")
    reported = [unknown_inputs("muls_add_kernel")]
    write_database(table.with_name("ascend_pytorch_profiler_0.db"), reported)
    table.unlink()
    report = read_profile([folder]).report
    assert report.compute_rows == 1 and not report.unknown_input_rows


def test_bytes_that_are_no_text_are_refused_with_their_line_next_to_a_log(tmp_path):
    folder = written(tmp_path, [row(1, "Add", 5), row(1, "Mul", 9)], [call(1)])
    (table,) = folder.rglob("kernel_details.csv")
    table.write_bytes(table.read_bytes().replace(b"Mul_1", b"Mul_\xff"))
    with pytest.raises(BadInput, match=r"kernel_details\.csv:3: expected UTF-8 text"):
        read_profile([folder])
    profile = read_profile([folder], skip_bad_rows=True)
    assert [one.line for one in profile.report.skipped] == [3]


def test_rows_remain_unknown_if_calls_and_rows_do_not_match(tmp_path):
    known = row(1, "muls_add_kernel", 9, '"""7,8;8""",FLOAT16;FLOAT16,ND;ND,"""7,8""",FLOAT16,ND')
    for name, rows, words in (
        ("fewer calls", [row(1, "muls_add_kernel", at) for at in (1, 2)], "2 rows and 1 calls"),
        ("another shape", [known], "other shapes"),
    ):
        profile = read_profile([written(tmp_path / name, rows, [call(1)])])
        (completed,) = profile.report.completed
        assert completed.rows == 0 and words in completed.unpaired[0], name
        assert not any(one.case.inputs == (4, 8) for one in profile.records)


def test_steps_that_are_counted_from_another_number_are_paired_in_order(tmp_path):
    calls = [call(9, cells=with_shape("1,8")), call(10, cells=with_shape("2,8"))]
    for name, rows in (
        ("steps", [row(3, "muls_add_kernel", 5), row(4, "muls_add_kernel", 9)]),
        ("without", [row("", "muls_add_kernel", 5), row("", "muls_add_kernel", 9)]),
    ):
        profile = read_profile([written(tmp_path / name, rows, calls)])
        assert [one.case.inputs[0].shape for one in profile.records] == [(1, 8), (2, 8)], name


def test_each_launch_of_fused_attention_gets_its_own_lengths(tmp_path):
    rows = [row(step, "FusedInferAttentionScore", step, ATTENTION) for step in (1, 2)]
    calls = [attention(1, [30, 40]), call(1), attention(2, [31, 41])]
    folder = written(tmp_path, rows, calls)
    cases = [one.case for one in read_profile([folder]).records]
    assert len(cases) == 2  # the shapes of both are the same
    lengths = [case.attribute("Runtime actual_seq_lengths_kv_values") for case in cases]
    assert lengths == ["30,40", "31,41"]
    assert {case.attribute("Runtime num_heads") for case in cases} == {"4"}
    (log,) = folder.rglob(LOG_FILE)
    assert len(read_attention_values(log)) == 2  # the backfill reads the same file


def test_window_is_a_column_of_attention_in_a_band_alone(tmp_path):
    for mode, expected in ((3, None), (4, "127")):
        line = attention(1, [60, 40]) | {"sparse_mode": mode, "pre_tokens": 127}
        path = tmp_path / f"{mode}.jsonl"
        path.write_text(json.dumps(line))
        (values,) = read_attention_values(path)
        assert values.cells.get("Runtime pre_tokens") == expected


def test_invalid_log_is_refused_with_its_line(tmp_path):
    for number, line in enumerate(
        (
            "{",
            "[1]",
            '{"kernels": [1]}',
            '{"kernels": ["Add"], "cells": {"Name": "x"}}',
            '{"kernels": ["Add"], "cells": {"Input Shapes": "a,b"}}',
            "[" * 100_000,
            json.dumps(attention(1, [1 << 60])),
        )
    ):
        folder = written(tmp_path / str(number), [row(1, "Add", 1)], [call(1), line, call(1)])
        (log,) = folder.rglob(LOG_FILE)
        with pytest.raises(BadInput) as refused:
            list(read_calls(log))
        assert refused.value.line == 2, line[:40]
        with pytest.raises(BadInput):
            read_profile([folder])
        assert read_profile([folder], skip_bad_rows=True).report.unusable


def test_a_last_line_that_a_killed_process_cut_is_no_call(tmp_path):
    folder = written(tmp_path, [row(1, "muls_add_kernel", 1)], [call(1), json.dumps(call(1))[:50]])
    (completed,) = read_profile([folder]).report.completed
    assert completed.rows == 1 and not completed.unpaired


def test_a_profile_cannot_state_other_values_than_runtime_columns(tmp_path):
    for text in ("{", '{"Type": "x"}', '{"Runtime a": 1}', "[]"):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        quoted = '"' + text.replace('"', '""') + '"'
        table = f"{COLUMNS},Runtime call_values\n{row(1, 'Add', 1)},{quoted}\n"
        (folder / "kernel_details.csv").write_text(table)
        with pytest.raises(BadInput):
            read_profile([folder])
