"""Events of traces become rows, for any size of the file and order of its events."""

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
from collector.profiles.trace_events import (
    DEVICE_COLUMNS,
    HOST_COLUMNS,
    SIMULATION_COLUMNS,
    trace_kind,
    trace_rows,
)
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


# Tasks of cores; others are copies, events and launches of the profiler itself.
KERNEL_TASKS = {"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "DSA_SQE", "AI_CPU"}
NAMED = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "Ascend Hardware"}}
HOST = {"ph": "X", "name": "aten::add", "pid": 1, "tid": 1, "ts": "1.5", "dur": 3, "args": {}}
EVENTS = [kernel('a, "b"', "1736408883674584.732", 0.02), HOST, kernel("Ü", "2", 7.1), NAMED]


def rows(path: Path) -> list[tuple[str, ...]]:
    return list(trace_rows(path, trace_kind(path)))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_device_events_of_lists_and_objects_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(trace_events, "_CHUNK", chunk)
    whole = {"schemaVersion": 1, "other": [1, {"a": "]"}], "traceEvents": EVENTS, "end": 12345}
    expected = [
        ('a, "b"', "AI_CORE", "Ascend Hardware", "46", "1736408883674584.732", "0.02", "305", ""),
        ("Ü", "AI_CORE", "Ascend Hardware", "46", "2", "7.1", "305", ""),
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
    assert rows(path) == [("gemm", "kernel", "", "7", "1.5", "2", "12", "")]


def test_simulation_has_the_columns_of_trace_to_csv(tmp_path: Path) -> None:
    args = {"kernel_type": "MatMulV2", "confidence": 0.9, "kernel_shapes": [[2, 3]]}
    events = [{"ph": "X", "name": "mm", "dur": 12.5, "args": args}, {"ph": "X", "name": "x"}]
    path, out = tmp_path / "sim.json", tmp_path / "out.csv"
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "i", "name": "skipped"}]}))
    to_csv_command(path, output=out)
    found = list(csv.DictReader(io.StringIO(out.read_text())))
    assert tuple(found[0]) == SIMULATION_COLUMNS
    assert found[0] | {"dur_us": "12.5"} == found[0] and found[0]["kernel_shapes"] == "[[2, 3]]"
    assert [row["op_name"] for row in found] == ["mm", "x"] and found[1]["dur_us"] == "0"
    written = out.read_bytes()
    for text in ("{}", "[]", '{"traceEvents": []}'):
        path.write_text(text)
        with pytest.raises(BadInput, match="complete events"):
            to_csv_command(path, output=out)
    with pytest.raises(BadInput, match="another file than the trace"):
        to_csv_command(path, output=path)
    assert out.read_bytes() == written


def operator(name: str, number: int, start: Any, dur: float, **args: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": dur}
    return {**event, "args": {"External id": number, **args}}


OF_TORCH = {"Input Dims": [[16, 64], [64, 32], []], "Input type": ["float", "float", "Scalar"]}
OF_TORCH_CELLS = ("16,64;64,32;", "float;float;Scalar")


def test_a_trace_of_a_host_alone_has_its_operators(tmp_path: Path) -> None:
    path, out = tmp_path / "cpu.json", tmp_path / "out.csv"
    note = {"ph": "X", "cat": "user_annotation", "name": "step", "ts": 1, "dur": 9}
    path.write_text(
        json.dumps({"traceEvents": [note, operator("aten::mm", 3, 2.5, 4, **OF_TORCH)]})
    )
    to_csv_command(path, output=out)
    (row,) = csv.DictReader(io.StringIO(out.read_text()))
    cells = ("aten::mm", "1", "2.5", "4", "3", *OF_TORCH_CELLS)
    assert row == dict(zip(HOST_COLUMNS, cells, strict=True))


def table(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def test_kernels_of_torch_have_the_shapes_of_their_operators(tmp_path: Path) -> None:
    def launched(number: int, dur: float, name: str = "void gemm<float>(int)") -> dict[str, Any]:
        args = {"External id": number}
        return {"ph": "X", "cat": "kernel", "name": name, "ts": 9, "dur": dur, "args": args}

    other = {"Input Dims": [[1, 64]], "Input type": ["float"]}
    events = [
        *(
            launched(3, 2.0),
            launched(3, 4.0),
            launched(5, 9.0),
            launched(8, 1.0),
            launched(3, 1, "x"),
        ),
        *(operator("aten::mm", 3, 2.5, 4, **OF_TORCH), operator("aten::mm", 5, 7.5, 4, **other)),
    ]
    path, folder = tmp_path / "gpu.json", tmp_path / "kernels"
    path.write_text(json.dumps(events))
    to_csv_command(path, by_kernel=folder)
    gemm, short = sorted(folder.iterdir())
    name = "void gemm<float>(int)"
    assert short.name == "x.csv" and gemm.name.startswith("void_gemm_float_int_-")
    assert table(gemm) == [
        [name, "1,64", "float", "1", "9", "9", "9", "9"],
        [name, *OF_TORCH_CELLS, "2", "3", "2", "4", "6"],
    ]
    assert table(short) == [["x", *OF_TORCH_CELLS, "1", "1", "1", "1", "1"]]
    with pytest.raises(BadInput):
        to_csv_command(path, by_kernel=folder, output=tmp_path / "out.csv")


def test_kernels_of_torch_npu_have_the_shapes_of_the_operator_around_the_call(
    tmp_path: Path,
) -> None:
    arrow = {"cat": "async_npu", "name": "torch_to_npu", "id": 7}
    dims = {"Input Dims": "16,64;\r\n64,32;\r\n", "Input type": "float;\r\nfloat"}
    outer = operator("aten::linear", 0, "1736408883674580.100", 30, **dims | {"Input Dims": "1,2"})
    inner = operator("aten::mm", 0, "1736408883674581.100", 20, **dims)
    called = operator("aclnnMm", 0, "1736408883674582.500", 5)
    begin = {"ph": "s", **arrow, "pid": 1, "tid": 1, "ts": "1736408883674582.500"}
    end = {"ph": "f", **arrow, "pid": 7, "tid": 46, "ts": "1736408883674600.250"}
    alone = kernel("alone", "1736408883674700.000", 1)
    ran = kernel("aclnnMm_MatMulV2", "1736408883674600.250", 2.5)
    path, folder = tmp_path / "trace_view.json", tmp_path / "kernels"
    path.write_text(json.dumps([ran, alone, end, inner, outer, called, begin, NAMED]))
    to_csv_command(path, by_kernel=folder)
    (written,) = folder.iterdir()
    cells = ["aclnnMm_MatMulV2", "16,64;64,32;", "float;float", "1", "2.5", "2.5", "2.5", "2.5"]
    assert table(written) == [cells]


def test_a_simulation_has_kernels_by_type_and_a_trace_without_shapes_none(tmp_path: Path) -> None:
    path, folder = tmp_path / "sim.json", tmp_path / "kernels"
    args = {"kernel_type": "MatMulV2", "simulation_shapes": "2,3;3,4"}
    path.write_text(json.dumps([{"ph": "X", "name": "mm", "dur": 12.5, "args": args}] * 2))
    to_csv_command(path, by_kernel=folder)
    cells = ["MatMulV2", "2,3;3,4", "", "2", "12.5", "12.5", "12.5", "25"]
    assert table(folder / "MatMulV2.csv") == [cells]
    for events in (EVENTS, [operator("aten::mm", 1, 1, "x", **OF_TORCH)]):  # type: ignore[arg-type]
        path.write_text(json.dumps(events))
        with pytest.raises(BadInput) as error:
            to_csv_command(path, by_kernel=tmp_path / "none")
        assert error.value.path == path
    assert not (tmp_path / "none").exists()


def gpu_kernel(name: str, pid: object, start: Any, dur: Any, **args: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": pid, "tid": 7, "ts": start}
    return {**event, "dur": dur, "args": {"stream": 7, **args}}


def test_kernels_of_merged_ranks_have_their_own_operators_or_are_refused(tmp_path: Path) -> None:
    path, folder = tmp_path / "merged.json", tmp_path / "kernels"
    ranks: list[dict[str, Any]] = []
    for rank, dims in enumerate(([[8, 16]], [[8, 32]])):
        launches = operator("aten::mm", 5, 1, 4, **{"Input Dims": dims, "Input type": ["float"]})
        ran = gpu_kernel("gemm", f"[TP0{rank}] 0", 9, 10 * rank + 10, **{"External id": 5})
        ranks += [launches | {"pid": f"[TP0{rank}] 80"}, ran]
    path.write_text(json.dumps(ranks))
    to_csv_command(path, by_kernel=folder)
    rows = [
        ["gemm", "8,32", "float", "1", *["20"] * 4],
        ["gemm", "8,16", "float", "1", *["10"] * 4],
    ]
    assert table(folder / "gemm.csv") == rows
    arrows = [
        {"ph": "s", "cat": "async_npu", "id": 3, "pid": pid, "tid": 1, "ts": 2} for pid in (80, 81)
    ]
    plain = [event | {"pid": int(str(event["pid"])[7:])} for event in ranks]
    # The second rank recorded no shapes: its kernels have none, not those of the first.
    bare = [*plain[:2], {**plain[2], "pid": 81, "args": {"External id": 5}}, plain[3]]
    for events in (plain, bare, [NAMED, kernel("a", "1", 1), *arrows]):
        path.write_text(json.dumps(events))
        with pytest.raises(BadInput, match="one rank at a time"):
            to_csv_command(path, by_kernel=tmp_path / "none")
    # The operators of the second rank were not recorded at all.
    ends = [{**arrows[0], "ph": "f", "pid": pid, "tid": 46, "ts": "9"} for pid in (7, 8)]
    around = operator("aten::mm", 1, 1, 4, **OF_TORCH) | {"pid": 80}
    launched = [kernel("a", "9", 1, pid=pid) for pid in (7, 8)]
    of_npus = [NAMED, {**NAMED, "pid": 8}, *launched, around, arrows[0], *ends]
    for events in ([*plain[:2], {**plain[3], "pid": 1}], of_npus):
        path.write_text(json.dumps(events))
        with pytest.raises(BadInput, match="events with shapes"):
            to_csv_command(path, by_kernel=tmp_path / "none")
        path.write_text(json.dumps([one for one in events if one.get("pid") not in (1, 8)]))
        to_csv_command(path, by_kernel=tmp_path / "one")


def test_kernels_of_merged_hosts_with_equal_processes_and_threads_are_refused(
    tmp_path: Path,
) -> None:
    path, folder = tmp_path / "merged.json", tmp_path / "kernels"
    of_gpus = [
        event
        for at in (1, 3)
        for event in (
            operator("aten::mm", 5, at, 4, **OF_TORCH),
            gpu_kernel("gemm", 0, at + 8, 10, **{"External id": 5}),
        )
    ]

    def launched(at_us: int, number: int, dims: str) -> list[dict[str, Any]]:
        """Return an operator of 20 us, its call in the middle of it, and its kernel 50 us later."""
        arrow = {"cat": "async_npu", "id": number}
        args = {"Input Dims": dims, "Input type": "float"}
        return [
            operator("aten::mm", 0, at_us, 20, **args),
            {"ph": "s", **arrow, "pid": 1, "tid": 1, "ts": at_us + 10},
            {"ph": "f", **arrow, "pid": 7, "tid": 46, "ts": at_us + 50},
            kernel("MatMulV2", str(at_us + 50), 2),
        ]

    # Of two hosts that began 8 us apart: the call of the first is within both operators.
    of_npus = [NAMED, *launched(100, 1, "8,16"), *launched(108, 2, "8,32")]
    for events in (of_gpus, of_npus):
        path.write_text(json.dumps(events))
        with pytest.raises(BadInput, match="one rank at a time"):
            to_csv_command(path, by_kernel=folder)
    path.write_text(json.dumps([NAMED, *launched(100, 1, "8,16"), *launched(120, 2, "8,32")]))
    to_csv_command(path, by_kernel=folder)
    assert [row[1] for row in table(folder / "MatMulV2.csv")] == ["8,16", "8,32"]


def test_a_launch_that_outlasts_the_next_one_of_its_stream_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "gpu.json", tmp_path / "kernels"
    launches = [operator("aten::mm", 3, 2.5, 4, **OF_TORCH)]
    launches += [gpu_kernel("gemm", 0, at, 10, **{"External id": 3}) for at in (100, 140)]
    wrong = gpu_kernel("gemm", 0, "120.250", 3.4e6, **{"External id": 3})
    concurrent = gpu_kernel("gemm", 0, 130, 5e3, **{"External id": 3, "graph node id": 6})
    path.write_text(json.dumps([*launches, wrong, concurrent]))
    to_csv_command(path, by_kernel=folder)
    assert "gemm at 120.250: dur: expected at most 1019.750 us" in capsys.readouterr().err
    assert [row[3:] for row in table(folder / "gemm.csv")] == [
        ["3", "1673.333333", *["10", "5000", "5020"]]
    ]
    assert [row[5] for row in rows(path)] == ["10", "10", "5000.0"]


def test_times_of_day_keep_their_digits_and_rows_name_their_device(tmp_path: Path) -> None:
    path = tmp_path / "npu.json"
    named = {**NAMED, "pid": 8}
    label = {"ph": "M", "name": "process_labels", "pid": 8, "args": {"labels": "NPU 3"}}
    text = json.dumps(
        [NAMED, kernel("a", "START", 5.125), named, label, kernel("b", "1", 2, pid=8)]
    )
    path.write_text(text.replace('"START"', "1764403200123461.222"))
    found = [dict(zip(DEVICE_COLUMNS, row, strict=True)) for row in rows(path)]
    assert [row["start_us"] for row in found] == ["1764403200123461.222", "1"]
    assert [row["device"] for row in found] == ["", "3"]


def test_traces_of_old_torch_are_read_and_those_of_other_programs_refused(tmp_path: Path) -> None:
    path, folder = tmp_path / "trace.json", tmp_path / "kernels"
    old = [operator("aten::mm", 3, 2.5, 4, **OF_TORCH) | {"cat": "Operator"}]
    old += [gpu_kernel("gemm", 0, 9, 3, **{"External id": 3}) | {"cat": "Kernel"}]
    path.write_text(json.dumps(old))
    to_csv_command(path, by_kernel=folder)
    assert table(folder / "gemm.csv") == [
        ["gemm", *OF_TORCH_CELLS[:1], OF_TORCH_CELLS[1], "1", *["3"] * 4]
    ]
    xla = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}}
    ran = {"ph": "X", "name": "fusion", "pid": 1, "tid": 1, "ts": 5, "dur": 3}
    durations = (-3, "x", None, True, "1_0", 10**400)
    launches = [gpu_kernel("a", 0, 1, dur) for dur in durations]
    launches += [gpu_kernel("a", 0, start, 1) for start in (float("nan"), "x", 1e30)]
    launches += [{name: value for name, value in launches[0].items() if name != "dur"}]
    for wrong in ([xla, ran], [ran], *([launch] for launch in launches)):
        path.write_text(json.dumps(wrong))
        with pytest.raises(BadInput):
            to_csv_command(path, output=tmp_path / "out.csv")
    for text in ('[{"ph": "X", "cat": "kernel", "dur": NaN}]', f"{json.dumps(old)}[]", "{} {}"):
        path.write_text(text)
        with pytest.raises(BadInput):
            to_csv_command(path, output=tmp_path / "out.csv")


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
        if cells["task_type"] in {*KERNEL_TASKS, "COMMUNICATION"}:
            found[cells["name"], round(float(cells["start_us"]), 1)] = float(cells["duration_us"])
    with (folder / "kernel_details.csv").open() as file:
        kernels = list(csv.DictReader(file))
    expected = {
        (row["Name"], round(float(row["Start Time(us)"]), 1)): float(row["Duration(us)"])
        for row in kernels
    }
    assert len(expected) == len(kernels) > 30
    assert found.keys() == expected.keys()
    for key, duration_us in expected.items():
        assert found[key] == pytest.approx(duration_us, abs=0.011), key


@pytest.mark.parametrize("run", ["inference_cann9.1_ascend_pt", "resnet_2025_rank0_ascend_pt"])
def test_kernels_of_real_runs_have_the_launches_and_times_of_kernel_details(
    run: str, tmp_path: Path
) -> None:
    if not (root := os.environ.get("OPMETER_TEST_PROFILES")):
        lacking("real profiles are not part of the project: set OPMETER_TEST_PROFILES")
    folder = Path(root) / run / "ASCEND_PROFILER_OUTPUT"
    if not folder.exists():
        lacking(f"no {folder}")
    to_csv_command(folder / "trace_view.json", by_kernel=tmp_path)
    known: dict[str, list[float]] = {}
    with (folder / "kernel_details.csv").open() as file:
        for row in csv.DictReader(file):
            known.setdefault(row["Name"], []).append(float(row["Duration(us)"]))
    compared = 0
    for path in tmp_path.iterdir():
        rows = table(path)
        if (name := rows[0][0]) in known and sum(int(row[3]) for row in rows) == len(known[name]):
            compared += 1
            total_us = sum(float(row[7]) for row in rows)
            assert total_us == pytest.approx(sum(known[name]), abs=0.011 * len(known[name]))
    assert compared >= 2
