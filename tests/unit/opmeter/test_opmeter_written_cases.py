"""Cases as users write them: every form is the same case, and a mistake is one line."""

import json
import zipfile
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from opmeter.written_cases import case_of_text, cases_of_file, records_of

pytestmark = pytest.mark.fast

WRITTEN = (
    "MatMulV2 32,64;64,16 bf16",
    "MatMulV2 32,64;64,16 bfloat16",
    "MatMulV2 [32,64] [64,16] DT_BF16;DT_BF16",
    "MatMulV2 (32,64),(64,16) bf16,bf16 ND;ND",
    'MatMulV2 "32,64;64,16" dtype=torch.bfloat16 format=ND;ND',
    '{"kernel_type": "MatMulV2", "Input Shapes": "32,64;64,16", "Input Data Types": "bf16"}',
    '{"kernel": "MatMulV2", "shapes": [[32, 64], [64, 16]], "dtypes": ["bf16", "bf16"]}',
    '{"workload_id": "a", "critical": true, "query": {"kernel_type": "MatMulV2", '
    '"Input Shapes": "32,64;64,16", "Input Data Types": "DT_BF16;DT_BF16"}}',
    '{"kernel_type": "MatMulV2", "cells": {"Input Shapes": "32,64;64,16", "Input Data Types": '
    '"DT_BF16;DT_BF16"}, "reason": "outside", "count": 1, "weight": 2.0}',
)


def test_every_form_is_the_same_case() -> None:
    assert len({record.case_id for record in records_of(map(case_of_text, WRITTEN))}) == 1


def test_named_values_are_columns_of_the_case() -> None:
    (record,) = records_of([case_of_text("Cast 4,8 bf16 output=4,8 output_dtype=fp32")])
    assert record.cells["Output Data Types"] == "FLOAT" and record.cells["Output Shapes"] == '"4,8"'
    case = case_of_text("FlashAttentionScore 1,8;1,8;1,8 bf16 mask=causal lengths=5,7")
    assert case.cells["Runtime mask"] == "causal"
    assert case.cells["Runtime actual_seq_lengths_kv_values"] == "5,7"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("MatMulV2 32,64;64,16", "dtype"),
        ("MatMulV2 bf16", "shapes"),
        ("MatMulV2 32,64;64,16 bf17", "'bf17'"),
        ("MatMulV2 32,64;64,16 bf16 ND;ND ND", "'ND'"),
        ("MatMulV2 32,64;64,16 bf16;bf16;bf16", "2 inputs"),
        ("MatMulV2 32,64;64,16 bf16 dtype=fp32", "'bf16'"),
        ("MatMulV2 32,64;64,16 bf16 Input=3", "Input Shapes"),
        ("MatMulV2 99999999999999999999,2 bf16", "shape"),
        ("MatMulV9 32,64;64,16 bf16", "MatMulV"),
        ("Mat/Mul 32,64 bf16", "Mat/Mul"),
        ('{"Input Shapes": "8,8"}', "kernel_type"),
        ('{"kernel_type": "Add", "Input Shapes": {}}', "Input Shapes"),
        ('{"kernel_type": "Add", "Shp-es": "8,8"}', "Shp-es"),
        ('{"kernel_type": ', "JSON"),
    ],
)
def test_mistakes_are_one_line(text: str, named: str) -> None:
    with pytest.raises(BadInput, match=named) as failed:
        records_of([case_of_text(text)])
    assert "\n" not in str(failed.value)


def test_files_of_every_kind_have_the_same_cases(tmp_path: Path) -> None:
    rows = [
        "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
        "Output Data Types,Output Formats",
        'dynamic,AI_VECTOR_CORE,"""4,8;4,8""",FLOAT;FLOAT,ND;ND,"""4,8""",FLOAT,ND',
    ]
    profile = [
        "Step Id,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),"
        "Block Dim,Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,"
        "Output Formats,Context ID",
        '1,aclnnAdd,Add,dynamic,AI_VECTOR_CORE,1.5,3.25,0,8,"""4,8;4,8""",FLOAT;FLOAT,ND;ND,'
        '"""4,8""",FLOAT,ND,N/A',
    ]
    text = "# of a model\n\nAdd 4,8;4,8 fp32 ND;ND output=4,8 output_dtype=fp32\n"
    case = {"kernel_type": "Add", "shape": "4,8;4,8", "dtype": "fp32", "output": [4, 8]}
    files = {
        "Add.csv": "\n".join(rows),
        "cases.csv": "kernel_type," + "\n".join([rows[0], f"Add,{rows[1]}"]),
        "some.csv": "\n".join(profile),
        "cases.txt": text,
        "cases.json": json.dumps([case, case]),
        "cases.jsonl": f"{json.dumps(case)}\n{json.dumps(case)}\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    folder = tmp_path / "run_ascend_pt"
    folder.mkdir()
    (folder / "kernel_details.csv").write_text("\n".join(profile))
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        archive.writestr("kernel_details.csv", "\n".join(profile))
    for name in (*files, folder.name, "run.zip"):
        cases, unused = cases_of_file(tmp_path / name)
        (record,) = records_of(cases, tmp_path / name)
        found = (record.kernel_type, record.cells["Input Shapes"], record.cells["Output Shapes"])
        assert found == ("Add", '"4,8;4,8"', '"4,8"') and unused == [], name


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("cases.txt", "Add 4,8;4,8 fp32\nAdd 4,x fp32\n", "cases.txt:2"),
        ("cases.txt", "Add 4,8;4,8\n", "cases.txt:1"),
        ("cases.jsonl", '{"kernel_type": "Add", "shape": "4,8"}\n{"shape": \n', "cases.jsonl:2"),
        ("cases.json", '[{"kernel_type": "Add"}, 3]', "case 2"),
        ("cases.json", "[", "cases.json"),
        ("cases.csv", "Input Shapes\n4\n", "kernel_type"),
        ("cases.csv", "kernel_type,Shapes\nAdd,4\n", "Input Shapes"),
        ("none.txt", None, "none.txt"),
    ],
)
def test_mistakes_in_files_name_the_line(
    tmp_path: Path, name: str, content: str | None, named: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadInput, match=named) as failed:
        records_of(cases_of_file(path)[0], path)
    assert "\n" not in str(failed.value) and str(path) in str(failed.value)
