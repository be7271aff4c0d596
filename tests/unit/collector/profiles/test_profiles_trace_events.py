"""Events of traces become rows, whatever the size of the file and the order of its events."""

import csv
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from collector.codec.errors import BadInput
from collector.profiles import trace_events
from collector.profiles.trace_events import DEVICE_COLUMNS, SIMULATION_COLUMNS, kind_of, rows_of
from jobs.cli.trace import to_csv_command
from tests.lacking import lacking

pytestmark = pytest.mark.fast


def kernel(name: str, start: str, dur: float, **more: Any) -> dict[str, Any]:
    args = {"Task Type": "AI_CORE", "Physic Stream Id": 46, "connection_id": 305}
    return {
        "ph": "X",
        "name": name,
        "pid": 7,
        "tid": 46,
        "ts": start,
        "dur": dur,
        "args": args,
    } | more


# Tasks of cores; others are copies, events and what the profiler itself launches.
KERNEL_TASKS = {"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "DSA_SQE", "AI_CPU"}
NAMED = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "Ascend Hardware"}}
HOST = {"ph": "X", "name": "aten::add", "pid": 1, "tid": 1, "ts": "1.5", "dur": 3, "args": {}}
EVENTS = [kernel('a, "b"', "1736408883674584.732", 0.02), HOST, kernel("Ü", "2", 7.1), NAMED]


def rows(path: Path) -> list[tuple[str, ...]]:
    return list(rows_of(path, kind_of(path)))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_device_events_of_lists_and_objects_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(trace_events, "_CHUNK", chunk)
    whole = {"schemaVersion": 1, "other": [1, {"a": "]"}], "traceEvents": EVENTS, "end": 12345}
    expected = [
        ('a, "b"', "AI_CORE", "Ascend Hardware", "46", "1736408883674584.732", "0.02", "305"),
        ("Ü", "AI_CORE", "Ascend Hardware", "46", "2", "7.1", "305"),
    ]
    for name, value in (("list.json", EVENTS), ("object.json", whole)):
        (tmp_path / name).write_text(json.dumps(value, indent=1), encoding="utf-8")
        assert rows(tmp_path / name) == expected
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        assert rows(tmp_path / f"{name}.gz") == expected


def test_kernels_of_torch_profiler_are_device_events(tmp_path: Path) -> None:
    args = {"stream": 7, "correlation": 12}
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.5, "dur": 2, "args": args}
    path = tmp_path / "x.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": [HOST, event]}))
    assert rows(path) == [("gemm", "kernel", "", "7", "1.5", "2", "12")]


def test_a_simulation_has_the_columns_of_trace_to_csv(tmp_path: Path) -> None:
    args = {"kernel_type": "MatMulV2", "confidence": 0.9, "kernel_shapes": [[2, 3]]}
    events = [{"ph": "X", "name": "mm", "dur": 12.5, "args": args}, {"ph": "X", "name": "x"}]
    path, out = tmp_path / "sim.json", tmp_path / "out.csv"
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "i", "name": "skipped"}]}))
    to_csv_command(path, output=out)
    found = list(csv.DictReader(io.StringIO(out.read_text())))
    assert tuple(found[0]) == SIMULATION_COLUMNS
    assert found[0] | {"dur_us": "12.5"} == found[0] and found[0]["kernel_shapes"] == "[[2, 3]]"
    assert [row["op_name"] for row in found] == ["mm", "x"] and found[1]["dur_us"] == "0"
    path.write_text("{}")
    to_csv_command(path, output=out)
    assert out.read_text().splitlines() == [",".join(SIMULATION_COLUMNS)]


@pytest.mark.parametrize(
    "text", ["", "nothing", "[", '[{"ph": "X"}', '{"traceEvents": [{"ph"', "[" * 100_000, '{"a" 1}']
)
def test_other_files_are_refused_and_nothing_is_written(tmp_path: Path, text: str) -> None:
    path, out = tmp_path / "trace.json", tmp_path / "out.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"trace\.json"):
        to_csv_command(path, output=out)
    assert not out.exists() and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("run", ["inference_cann9.1_ascend_pt", "resnet_2025_rank0_ascend_pt"])
def test_kernels_of_real_runs_equal_their_kernel_details(run: str) -> None:
    if not (root := os.environ.get("OPMETER_TEST_PROFILES")):
        lacking("real profiles are not part of the project: set OPMETER_TEST_PROFILES")
    folder = Path(root) / run / "ASCEND_PROFILER_OUTPUT"
    if not folder.exists():
        lacking(f"no {folder}")
    found: dict[tuple[str, float], float] = {}
    for row in rows(folder / "trace_view.json"):
        cells = dict(zip(DEVICE_COLUMNS, row, strict=True))
        if cells["task_type"] in KERNEL_TASKS:
            found[cells["name"], round(float(cells["start_us"]), 1)] = float(cells["duration_us"])
    with (folder / "kernel_details.csv").open() as file:
        kernels = [row for row in csv.DictReader(file) if not row["Name"].startswith("hcom_")]
    expected = {
        (row["Name"], round(float(row["Start Time(us)"]), 1)): float(row["Duration(us)"])
        for row in kernels
    }
    assert len(expected) == len(kernels) > 30
    assert found.keys() == expected.keys()
    for key, duration_us in expected.items():
        assert found[key] == pytest.approx(duration_us, abs=0.011), key
