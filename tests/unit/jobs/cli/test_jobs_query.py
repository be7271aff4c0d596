"""`opmeter query`, and the loop from a query without a duration to its measurement."""

import csv
import io
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from collector.database.merge import CREATE, merge_plans
from collector.model.demand import read_misses
from collector.model.record import CaseRecord
from collector.model.vocabulary import BASE_CELLS
from collector.store.file import FileStore
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.jobs.cli.in_process import opmeter_here

_PRODUCT = ("4,8;8,16", "DT_BF16;DT_BF16", "ND;ND", "4,16", "DT_BF16", "ND")
RECORDS = [add_record(rows) for rows in (1, 4, 16)]
IN_FLOAT = {name: text.replace("DT_BF16", "FLOAT") for name, text in add_record(2).cells.items()}
TWINS = [add_record(2, kernel="Mul"), CaseRecord("Mul", IN_FLOAT, {})]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    records = [*RECORDS, *TWINS]
    plan = MadePlan([MadeShard("shard", records, [answered(records, 5.0)])])
    write_campaign(FileStore(folder), plan)
    merge_plans(FileStore(folder), [plan.name], guard=CREATE, author="test")
    return folder


@pytest.mark.fast
def test_query_prints_table_csv_and_json(root: Path, tmp_path: Path) -> None:
    words = ("query", "Add", "--root", root)
    shape = ("--shape", "4,64;4,64", "--dtype", "bf16")
    table = opmeter_here(*words, *shape)
    assert table.returncode == 0
    header, line = (text.split("\t") for text in table.stdout.splitlines())
    row = dict(zip(header, line, strict=True))
    assert (row["value_us"], row["channel"], row["Input Shapes"]) == ("6", "measured", "4,64;4,64")
    (plain,) = json.loads(opmeter_here(*words, *shape, "--json").stdout)
    assert plain["value_us"] == 6.0 and plain["reason"] == "" and plain["low_us"] < 6.0
    (written,) = json.loads(
        opmeter_here("query", "Add 4,64;4,64 bf16", "--root", root, "--json").stdout
    )
    assert written == plain
    file = tmp_path / "cases.csv"
    rows = '"""4,64;4,64""",\n"8,64;8,64",DT_BF16;DT_BF16\n'
    file.write_text(f"Input Shapes,Input Data Types\n{rows}")
    done = opmeter_here(*words, "--file", file, "--csv")
    first, second = csv.DictReader(io.StringIO(done.stdout))
    assert (first["value_us"], first["channel"]) == ("6", "measured")
    assert second["channel"] == "interpolated" and 6 < float(second["value_us"]) < 7
    explained = opmeter_here(*words, "--file", file, "--explain").stdout
    assert explained.count(RECORDS[1].case_id) == 2 and explained.count(RECORDS[2].case_id) == 1
    assert explained.count("to halve") == 2
    (found,) = json.loads(opmeter_here(*words, *shape, "--explain", "--json").stdout)
    assert found["widest"] == RECORDS[1].case_id and found["sessions_to_halve"] >= 1
    assert found["device_minutes_to_halve"] > 0


@pytest.mark.fast
def test_query_that_several_cases_match_says_how_far_apart_they_are(root: Path) -> None:
    words = ("query", "Mul", "--root", root, "--shape", "2,64;2,64")
    (found,) = json.loads(opmeter_here(*words, "--json").stdout)
    assert "several cases match: 2, of 8 to 9 us" in found["warnings"]
    for only in (("--dtype", "fp32"), ("--dtype", "bf16", "--output", "2,64")):
        (found,) = json.loads(opmeter_here(*words, *only, "--json").stdout)
        assert "several" not in found["warnings"]
    done = opmeter_here(*words, "--unambiguous")
    assert done.returncode == 1 and "ambiguous" in done.stdout
    done = opmeter_here(*words, "--output", "3,64")
    assert done.returncode == 2 and "Mul" in done.stderr  # no product has this shape


@pytest.mark.fast
def test_columns_of_a_file_decide_its_queries_or_are_named(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "cases.csv"
    words = ("query", "Add", "--root", root, "--file", file)
    for column in ("kernel_type", "Kernel Type"):
        rows = 'Mul,"2,64;2,64"\nNone,"4,64;4,64"\n,"4,64;4,64"\n'
        file.write_text(f"{column},Input Shapes\n{rows}")
        mul, none, add = csv.DictReader(io.StringIO(opmeter_here(*words, "--csv").stdout))
        assert (mul["kernel_type"], mul["value_us"]) == ("Mul", "8")
        assert (none["kernel_type"], none["reason"]) == ("None", "no kernel")
        assert (add["kernel_type"], add["value_us"]) == ("Add", "6")
    file.write_text('Input Shapes,note,Average Duration(us),layer\n"4,64;4,64",x,1,attention\n')
    done = opmeter_here(*words)
    assert done.returncode == 0 and "'note'" in done.stderr and "layer" not in done.stderr
    file.write_text('Input Shapes,\n"4,64;4,64",0\n')  # pandas writes its index without a name
    assert "Add" in opmeter_here(*words).stdout
    for header, meant in (
        ("Input Shapes,Input Data Type", "Input Data Types"),
        ("Input Shapes,input_dtype", "Input Data Types"),
        ("Input Shapes,dtype", "Input Data Types"),
        ("Input Shapes,output shapes", "Output Shapes"),
        ("Input Shapes,OP Type", "Kernel Type"),
        ("Input Shapes,weights", "weight"),
        ("Input Shapes,Input Shapes", "duplicate"),
        ("Input Shapes,note,more", "3 cells"),
    ):
        file.write_text(f'{header}\n"4,64;4,64",x\n')
        failed = opmeter_here(*words)
        assert failed.returncode == 2 and len(failed.stderr.splitlines()) == 1
        assert meant in failed.stderr and str(file) in failed.stderr


@pytest.mark.fast
def test_query_without_a_duration_is_reported_and_recorded(root: Path, tmp_path: Path) -> None:
    misses = tmp_path / "misses.jsonl"
    requested = ("query", "Add", "--root", root, "--shape", "99,64;99,64", "--misses", misses)
    done = opmeter_here(*requested)
    assert done.returncode == 1 and "outside" in done.stdout
    (one,) = read_misses(misses)
    assert (one.reason, one.count, one.demand.record.case_id) == (
        "outside",
        1,
        add_record(99).case_id,
    )
    file = tmp_path / "cases.csv"
    file.write_text('Input Shapes,Input Data Types,weight\n"98,64;98,64",DT_BF16;DT_BF16,64\n')
    opmeter_here("query", "Add", "--root", root, "--file", file, "--misses", misses)
    assert [(one.count, one.weight) for one in read_misses(misses)] == [(1, 64.0), (1, 1.0)]
    file.write_text('Input Shapes,Input Data Types,Output Shapes\n"7,64;",DT_BF16;INT64,"7,64"\n')
    more = tmp_path / "more.jsonl"
    opmeter_here("query", "Pow", "--root", root, "--file", file, "--misses", more)
    (one,) = read_misses(more)
    assert one.cells["Output Shapes"] == '"7,64"' and one.cells["Input Shapes"] == '"7,64;"'
    done = opmeter_here("coverage", misses, "--root", root, "--json")
    lacking = [one["cells"]["Input Shapes"] for one in json.loads(done.stdout)["lacking"]]
    assert done.returncode == 1 and lacking == ['"98,64;98,64"', '"99,64;99,64"']
    for wrong in (
        ("query", "Add", "--root", root, "--shape", "4,64;5,64"),  # cannot be added
        ("query", "Add", "--root", root),
        ("query", "Add", "--root", root, "--shape", "4,x"),
        ("query", "Add", "--root", tmp_path, "--shape", "4"),
        ("query", "Add", "--root", root, "--shape", "4", "--directory", "none"),
        ("query", "Add", "--root", root, "--file", tmp_path / "none.csv"),
        ("query", "Add 4,64;4,64 bf16", "--root", root, "--file", misses),
        ("query", "Add 4,64;4,64 bf17", "--root", root),
        ("query", "Add 4,64;4,64 bf16", "--root", root, "--dtype", "bf16"),
        ("query", "Add", "--root", root, "--shape", "4", "--csv", "--explain"),
    ):
        failed = opmeter_here(*wrong)
        assert failed.returncode == 2 and len(failed.stderr.splitlines()) == 1, wrong


@pytest.mark.fast
def test_query_without_a_duration_says_what_has_one(root: Path, tmp_path: Path) -> None:
    words = ("query", "AddV2", "--root", root, "--shape", "4,64;4,64")
    done = opmeter_here(*words)
    assert done.returncode == 1 and "Add (3 cases)" in done.stderr
    (found,) = json.loads(opmeter_here(*words, "--json").stdout)
    assert "Add (3 cases)" in found["hints"][0]
    file = tmp_path / "cases.csv"
    lines = [f'"{rows},64;{rows},64"\n' for rows in range(20, 30)]
    file.write_text("Input Shapes\n" + "".join(lines) + '"4,64;5,64"\n')
    done = opmeter_here("query", "Add", "--root", root, "--file", file)
    assert done.returncode == 1 and 5 < done.stderr.count("hint") < 15
    found = json.loads(
        opmeter_here("query", "Add", "--root", root, "--file", file, "--json").stdout
    )
    assert "nearest case: 16,64;16,64, 7 us" in found[0]["hints"]
    assert "no case has these shapes" in found[-1]["hints"][0]


@pytest.mark.fast
def test_contents_of_a_version_are_listed(root: Path) -> None:
    every = opmeter_here("db", "list", "--root", root).stdout.splitlines()
    assert every[1:] == ["Add\t3\tDT_BF16;DT_BF16", "Mul\t2\tDT_BF16;DT_BF16, FLOAT;FLOAT"]
    (found,) = json.loads(opmeter_here("db", "list", "Add", "--root", root, "--json").stdout)
    assert (found["inputs"], found["outputs"], found["cases"]) == (
        "1..16,64;1..16,64",
        "1..16,64",
        3,
    )
    assert "1..16,64;1..16,64" in opmeter_here("db", "list", "Add", "--root", root).stdout
    failed = opmeter_here("db", "list", "Adds", "--root", root)
    assert failed.returncode == 2 and "Add" in failed.stderr


@pytest.mark.fast
def test_missing_cases_of_a_manifest_are_listed_and_recorded(root: Path, tmp_path: Path) -> None:
    manifest, misses = tmp_path / "manifest.jsonl", tmp_path / "misses.jsonl"

    def line(workload: str, critical: bool, rows: int, kernel: str = "Add") -> str:
        cells = {name: text for name, text in add_record(rows).cells.items() if text}
        query = {"kernel_type": kernel, **cells}
        return json.dumps({"workload_id": workload, "critical": critical, "query": query}) + "\n"

    words = ("coverage", manifest, "--root", root)
    manifest.write_text(line("a", True, 4) + line("a", False, 8))
    assert opmeter_here(*words).returncode == 0  # the second is interpolated
    more = line("b", True, 8) + line("b", False, 99) + line("c", False, 99)
    manifest.write_text(line("a", True, 4) + line("a", False, 8) + more)
    lacking = [("8,64;8,64", True, ["a", "b"]), ("99,64;99,64", False, ["b", "c"])]
    done = opmeter_here(*words, "--json", "--misses", misses)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["conforms"] and found["required"] == 3
    assert [
        (one["cells"]["Input Shapes"].strip('"'), one["is_critical"], one["workloads"])
        for one in found["lacking"]
    ] == lacking
    assert [one.demand.record.case_id for one in read_misses(misses)] == [
        add_record(8).case_id,
        add_record(99).case_id,
    ]
    assert "8,64;8,64" in opmeter_here(*words).stdout
    manifest.write_text(line("a", True, 4) + line("a", True, 8, "NoSuchKernel"))
    found = json.loads((done := opmeter_here(*words, "--json")).stdout)
    assert done.returncode == 0 and len(found["refused"]) == 1  # reported, but cannot be measured
    manifest.write_text(line("a", True, 4) + '{"workload_id": "a"}\n')
    failed = opmeter_here(*words)
    assert failed.returncode == 2 and f"{manifest}:2" in failed.stderr


@pytest.mark.fast
def test_gaps_of_a_density_standard_are_listed(root: Path, tmp_path: Path) -> None:
    standard = tmp_path / "density.yaml"
    axis = "{range: [1, 32], segments: [{to: 32, max_ratio: 2}], required_values: [5]}"
    kernels = "kernels: {Add: {t: rows}}"
    standard.write_text(f"schema_version: 1\naxes: {{rows: {axis}}}\n{kernels}\n")
    words = ("coverage", standard, "--root", root)
    found = json.loads((done := opmeter_here(*words, "--json")).stdout)
    assert done.returncode == 1 and found["required"] == 7
    shapes = [one["cells"]["Input Shapes"].strip('"').split(",")[0] for one in found["lacking"]]
    assert (shapes[0], sorted(map(int, shapes))) == ("5", [2, 5, 10, 32])
    standard.write_text(standard.read_text().replace("Add", "MatMulV2").replace("t:", "m:"))
    failed = opmeter_here(*words)
    assert failed.returncode == 2 and "MatMulV2" in failed.stderr


@pytest.mark.fast
def test_quality_of_a_version_reports_the_interpolation_accuracy(tmp_path: Path) -> None:
    records = [add_record(rows) for rows in range(10, 40)]
    plan = MadePlan([MadeShard("shard", records, [answered(records, 5.0)])])
    write_campaign(FileStore(tmp_path), plan)
    merge_plans(FileStore(tmp_path), [plan.name], guard=CREATE, author="test")
    words = ("db", "quality", "--root", tmp_path)
    (quality,) = json.loads(opmeter_here(*words, "--json").stdout)
    (found,) = quality["interpolation"]
    assert quality["durations"] == 30
    assert (found["kernel"], found["rows"], found["held"], found["predicted"]) == (
        "Add",
        30,
        30,
        28,
    )
    (line,) = [x for x in opmeter_here(*words).stdout.splitlines() if x.startswith("between")]
    assert "Add" in line and "28 rows" in line
    lines = opmeter_here(*words, "--card").stdout.splitlines()
    assert lines[0].startswith("# ") and "| cases | 30 of 1 kernel type |" in lines
    (row,) = [line for line in lines if line.startswith("| Add |")]
    assert row.split(" | ")[1] == "28"
    assert opmeter_here(*words, "--card", "--json").returncode == 2


@pytest.mark.fast
def test_aiconfigurator_tables_are_written_once_and_read_back(tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "systems"
    cells = dict(zip(BASE_CELLS, ("dynamic", "", *_PRODUCT), strict=True))
    records = [CaseRecord("MatMulV2", cells, {})]
    plan = MadePlan([MadeShard("shard", records, [answered(records, 5.0)])])
    write_campaign(FileStore(root), plan)
    merge_plans(FileStore(root), [plan.name], guard=CREATE, author="test")
    words = ("db", "export", "--format", "aiconfigurator", "-o", out, "--root", root)
    done = opmeter_here(*words)
    assert done.returncode == 0, done.stderr
    folder = f"data/{STACK.device}/gemm/vllm/0"
    (row,) = pq.read_table(out / folder / "gemm_perf.parquet").to_pylist()
    assert (row["m"], row["n"], row["k"], row["gemm_dtype"]) == (4, 16, 8, "bfloat16")
    assert row["latency"] == pytest.approx(0.005)
    written = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    names = (f"{folder}/gemm_perf.parquet", f"{folder}/collection_meta.yaml")
    assert written == {*names, f"{STACK.device}.yaml"}
    assert opmeter_here(*words).returncode == 0  # the same files, as a killed export may leave them
    (out / f"{STACK.device}.yaml").write_text("edited: true\n")
    for wrong in (words, (*words, "--model", "qwen3-32b"), (*words, "--format", "none")):
        failed = opmeter_here(*wrong)
        assert failed.returncode == 2 and len(failed.stderr.splitlines()) == 1, wrong
    shutil.rmtree(out)
    (out / folder).mkdir(parents=True)
    (out / folder / "gemm_perf.parquet").symlink_to(tmp_path / "theirs")
    assert opmeter_here(*words).returncode == 2 and not (tmp_path / "theirs").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_measured_misses_are_answered_by_a_query(tmp_path: Path) -> None:
    """A simulator queries, a campaign measures what was missing, and then nothing is missing."""
    root, misses, queries = (tmp_path / name for name in ("store", "misses.jsonl", "cases.csv"))
    tree = tmp_path / "rows"
    tree.mkdir()
    header = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types"
    row = '"64,32;64,32",FLOAT;FLOAT,ND;ND,"64,32",FLOAT'
    (tree / "Add.csv").write_text(f"{header},Output Formats\n{row},ND\n")
    queries.write_text(
        "kernel_type,Input Shapes,Input Data Types\n"
        'Add,"64,32;64,32",FLOAT;FLOAT\n'
        'Add,"512,32;512,32",FLOAT;FLOAT\n'
        'Add,"16,32;16,32",FLOAT;FLOAT\n'
    )

    def run(source: str) -> None:
        file = tmp_path / "campaign.yaml"
        settings = "backend: cpu\nmeasure: {budget_s: 0.05}\n"
        file.write_text(f"campaign: loop\nsources: [{source}]\n{settings}store: {root}\n")
        locks = {"OPMETER_LOCKS": str(tmp_path / "locks")}
        done = opmeter_here("run", file, cwd=tmp_path, **locks)
        assert done.returncode == 0, done.stdout + done.stderr

    run("{tree: rows}")
    words = ("query", "Add", "--root", root, "--file", queries, "--json")
    first = opmeter_here(*words, "--misses", misses)
    answers = json.loads(first.stdout)
    assert first.returncode == 1
    assert [answer["reason"] for answer in answers] == ["", "outside", "outside"]
    assert len(read_misses(misses)) == 2
    missed = ("coverage", misses, "--root", root)
    assert opmeter_here(*missed).returncode == 1
    run("{misses: misses.jsonl}")
    assert opmeter_here(*missed).returncode == 0
    second = opmeter_here(*words)
    assert second.returncode == 0
    assert [answer["channel"] for answer in json.loads(second.stdout)][1:] == ["measured"] * 2
    # The same loop from a manifest, and from a density standard between the measured sizes.
    query = {"kernel_type": "Add", "Input Shapes": "8,32;8,32", "Input Data Types": "FLOAT;FLOAT"}
    query |= {"Output Shapes": "8,32", "Output Data Types": "FLOAT"}
    query |= {"Input Formats": "ND;ND", "Output Formats": "ND"}
    manifest, standard = tmp_path / "manifest.jsonl", tmp_path / "density.yaml"
    line = {"workload_id": "made", "critical": True, "query": query}
    manifest.write_text(json.dumps(line) + "\n")
    axes = "axes: {rows: {range: [8, 64], segments: [{to: 64, max_ratio: 2}]}}"
    standard.write_text(f"schema_version: 1\n{axes}\nkernels: {{Add: {{t: rows}}}}\n")
    conform = [("coverage", file, "--root", root) for file in (manifest, standard)]
    assert [opmeter_here(*words).returncode for words in conform] == [1, 1]
    run("{tree: rows}, {manifest: manifest.jsonl}, {density: density.yaml}")
    assert [opmeter_here(*words).returncode for words in conform] == [0, 0]
