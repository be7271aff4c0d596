"""A full disk and a read-only one end each command in one line, and change nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collector.singlehost.parse import parse_profile
from tests.fixtures.profiles.variants import ProfileRow, write_profile
from tests.unit.collector.database.campaign_maker import (
    add_record,
    record_of_shapes,
)
from tests.unit.jobs.cli.small_disk import COMMANDS, FUNCTIONS, NAMESPACE
from tests.unit.jobs.cli.small_model import write_database

ROOT = Path(__file__).parents[4]
ATTENTION = "8,4,128;9,128,128;9,128,128;;;2;2" + ";" * 24


@pytest.fixture
def inputs(tmp_path):
    mount = (*NAMESPACE, "mount", "-t", "tmpfs", "x", "/mnt")
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount a disk")
    records = [add_record(rows) for rows in range(1, 40)]
    records.append(record_of_shapes("MatMulV2", "64,64;64,64", "64,64", core="MIX_AIC"))
    write_database(tmp_path / "data", records)
    rows = [
        ProfileRow("MatMulV2", '"4,8;16,8"', out_shapes='"4,16"'),
        ProfileRow("FusedInferAttentionScore", f'"{ATTENTION}"', out_shapes='"8,4,128"'),
    ]
    write_profile(tmp_path / "serving", "K6", rows)
    for name in ("fia", "grid", "mapped"):
        parse_profile([tmp_path / "serving"], tmp_path / name)
        (tmp_path / name / "op_mapping.yaml").unlink(missing_ok=True)
    (tmp_path / "grid/FusedInferAttentionScore.csv").unlink()
    value = {"query_shape": [8, 4, 128], "key_shape": [9, 128, 128], "value_shape": [9, 128, 128]}
    value |= {"actual_seq_lengths_kv": [3, 5], "atten_mask_shape": [], "block_table_shape": None}
    (tmp_path / "values.jsonl").write_text(json.dumps(value) + "\n")
    dims = {"External id": 3, "Input Dims": [[1, 64]], "Input type": ["float"]}
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 9, "dur": 2.0, "args": dims},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 2.5, "dur": 4, "args": dims},
    ] * 300
    (tmp_path / "trace.json").write_text(json.dumps(events))
    return tmp_path


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 8192, -1], ids=["full", "almost full", "read-only"])
def test_disk_without_space_ends_each_command_in_one_line(inputs, room):
    module = ("-m", "tests.unit.jobs.cli.small_disk")
    command = (*NAMESPACE, sys.executable, *module, str(inputs), str(room))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == {**COMMANDS, **FUNCTIONS}.keys()
    cause = "Read-only file system" if room < 0 else "No space left on device"
    for name, one in found.items():
        if room > 0 and one["code"] == 0:  # it fits
            continue
        lines = one["said"].splitlines()
        assert one["code"] == 2 and len(lines) == 1 and cause in lines[0], (name, one)
        assert lines[0].startswith("opmeter: /"), (name, one)
        # It writes whole files, one by one, and its next run completes them.
        assert one["changed"] == [] or (name == "parse" and room > 0), (name, one)
    assert room <= 0 or sum(one["code"] == 2 for one in found.values()) > 4
