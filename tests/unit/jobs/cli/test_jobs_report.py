"""`opmeter report`: output and refusals of the commands."""

import csv
import json
import shlex

import pytest

from collector.codec.errors import BadInput
from collector.database.changes import directory_changes
from collector.database.commits import find_head
from collector.database.manifest import read_manifest
from collector.database.snapshot import read_shown
from collector.store.opening import open_store
from jobs.cli.options import ComparisonOptions, VersionOptions, WorkloadOptions
from jobs.cli.report import (
    compare_report_command,
    database_report_command,
    diff_report_command,
    model_report_command,
)
from tests.bench.varied_database import STACK, write_two_stacks, write_varied_database
from tests.browser.models import write_made_model

_LATER = STACK.version_path.replace("8.5.0", "8.6.0")


def write_diff(folder, root, before, after):
    where = {"output": folder / "report", "root": root}
    diff_report_command(before, after, **where, workload=WorkloadOptions())


@pytest.fixture(scope="module")
def two_stacks(tmp_path_factory):
    root = tmp_path_factory.mktemp("two")
    write_two_stacks(open_store(str(root)), 100, {"SwiGlu": 0.3})
    return str(root)


def test_report_db_lists_the_version_directories(two_stacks, tmp_path):
    models = ["qwen3-32b:tp=4"]
    database_report_command(output=tmp_path / "report", root=two_stacks, model=models)
    listed = json.loads((tmp_path / "report/index.json").read_text())["versions"]
    assert [one["version"] for one in listed] == [STACK.version_path, _LATER]
    for one in listed:
        page = tmp_path / "report" / one["href"]
        data = json.loads(page.with_suffix(".json").read_text())
        assert len(data["kernels"]) == one["kernels"]
        assert data["quality"]["durations"] == one["durations"]
        (coverage,) = data["coverage"]
        assert coverage["name"] == "qwen3-32b:tp=4"
        for share in ("cases", "launches", "time"):
            assert sum(of[share] for of in coverage["shares"].values()) == pytest.approx(1)
        assert sum(kernel["share"] for kernel in coverage["kernels"]) == pytest.approx(1)
        assert {kernel["kernel"] for kernel in coverage["kernels"]} > {"RmsNorm", "SwiGlu"}
        for kernel in coverage["kernels"]:
            assert (kernel["half_width"] is None) == ("exact" not in kernel["statuses"])
        root = shlex.split(coverage["missing"])[-3]
        assert root == open_store(two_stacks).url and root in data["measure"]
        for kernel in data["kernels"]:
            assert (page.parent / f"kernels/{kernel['stem']}.html").is_file()


def test_report_db_writes_each_measurement_once(tmp_path):
    root = str(tmp_path / "store")
    write_varied_database(open_store(root), 100)
    database_report_command(output=tmp_path / "report", root=root, lang="zh")
    kernels = tmp_path / "report/kernels"
    data = json.loads((kernels / "MatMulV2.json").read_text())
    (chunk,) = (kernels / "MatMulV2").iterdir()
    rows = json.loads(chunk.read_text().removeprefix("opmeter.receive(").removesuffix(")\n"))
    assert set(rows["row"]) == set(range(len(data["columns"]["case"])))
    assert len(set(rows["measurement"])) == len(rows["row"])
    with (kernels / "MatMulV2.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["case"] for row in written] == data["columns"]["case"]
    (group,) = data["groups"]
    assert [axis["name"] for axis in group["axes"]] == ["M", "N", "K"]
    m, n, k = (axis["values"][0] for axis in group["axes"])
    assert data["columns"]["shapes"][0] == f"{m},{k};{k},{n}"
    assert data["columns"]["operations"][0] == pytest.approx(2 * m * n * k, rel=1e-5)
    assert group["dtype"] == "bfloat16" and data["roof"]["flop_per_s"]["bfloat16"] == 353.9e12


def test_report_compare_accepts_directories_and_versions(two_stacks, tmp_path):
    names = (STACK.version_path, _LATER), (f"2:{STACK.version_path}", f"2:{_LATER}")
    for before, after in names:
        diff_report_command(
            before, after, output=tmp_path / "report", root=two_stacks, workload=WorkloadOptions()
        )
        data = json.loads((tmp_path / "report/index.json").read_text())
        assert data["common"] > 80 and data["step"] is None
    diff_report_command(
        "1", _LATER, output=tmp_path / "report", root=two_stacks, workload=WorkloadOptions()
    )


@pytest.mark.parametrize("side", ["9:x", "nothing", "2x"])
def test_report_compare_refuses_an_unknown_side(two_stacks, tmp_path, side):
    with pytest.raises(BadInput):
        diff_report_command(
            side, _LATER, output=tmp_path / "report", root=two_stacks, workload=WorkloadOptions()
        )


def test_report_compare_counts_the_changes_that_db_diff_lists(two_stacks, tmp_path):
    store = open_store(two_stacks)
    commit = find_head(store)
    manifest = read_manifest(store, commit)
    sides = [read_shown(store, commit, manifest, path) for path in (STACK.version_path, _LATER)]
    found = directory_changes(*sides)
    listed = {one.case_id: one.kind for one in (*found.cases, *found.others)}
    diff_report_command(
        STACK.version_path,
        _LATER,
        output=tmp_path / "report",
        root=two_stacks,
        workload=WorkloadOptions(),
    )
    with (tmp_path / "report/index.csv").open(newline="") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    findings = {case: row["finding"] for case, row in rows.items()}
    assert findings == {case: kind for case, kind in listed.items() if case in rows}
    assert set(findings.values()) == {"changed", "equal", "inconclusive"}
    data = json.loads((tmp_path / "report/index.json").read_text())
    assert data["findings"] == {kind: found.count(kind) for kind in data["findings"]}
    assert data["detectable"] == pytest.approx(found.detectable_ratio)
    assert data["sessions"] == found.sessions_for_10_pct
    total = data["total"]
    assert (total["before_us"], total["after_us"]) == pytest.approx(found.total_us)
    assert total["parts"] == pytest.approx(found.difference_us)
    assert sum(total["parts"].values()) == pytest.approx(total["after_us"] - total["before_us"])


def test_page_of_a_profile_shows_what_compare_prints(two_stacks, tmp_path):
    """The kernels of a profile that the database measured, next to its durations."""
    profile = tmp_path / "PROF" / "ASCEND_PROFILER_OUTPUT"
    profile.mkdir(parents=True)
    header = "Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),"
    header += "Block Dim,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    header += "Output Data Types,Output Formats"
    row = 'op,SwiGlu,dynamic,AI_VECTOR_CORE,1.0,20.0,0.0,24,"""16,12800""",DT_BF16,ND,'
    row += '"""16,6400""",DT_BF16,ND'
    second = row.replace(",1.0,", ",30.0,")
    (profile / "kernel_details.csv").write_text(f"{header}\n{row}\n{second}\n")
    (profile / "step_trace_time.csv").write_text(
        "Step,Computing,Communication(Not Overlapped),Free\n1,40.0,5.0,3.0\n"
    )
    where = ComparisonOptions(two_stacks, directory=STACK.version_path, force=True)
    compare_report_command(tmp_path / "PROF", output=tmp_path / "report", where=where)
    data = json.loads((tmp_path / "report/index.json").read_text())
    assert data["parts"]["measured"] == 48.0 and data["steps"] == 1 and data["cases"] == 1
    assert {one["part"] for one in data["bars"] if one["bar"] == "profile"} == {
        *("SwiGlu", "#waiting", "#idle")
    }
    with (tmp_path / "report/index.csv").open(newline="") as file:
        (written,) = csv.DictReader(file)
    assert float(written["in_situ_total_us"]) == 40.0 and written["launches"] == "2"


def test_report_model_separates_estimates_from_bounds(tmp_path, capsys):
    """No bound is above a measured duration, and the headline counts its estimates."""
    target = write_made_model(tmp_path)
    assert "% an estimate" in capsys.readouterr().out
    with (target / "index.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    measured = [row for row in rows if row["value_us"]]
    assert measured and all(row["estimate_us"] == "0.0" for row in measured)
    assert all(float(row["least_us"]) <= float(row["value_us"]) for row in measured)
    others = [row for row in rows if row["source"] == "estimated"]
    assert others and all(
        float(row["least_us"]) <= float(row["estimate_us"])
        and float(row["total_us"]) == int(row["launches"]) * float(row["estimate_us"])
        for row in others
    )


def test_report_model_refuses_options_that_a_recording_has(two_stacks, tmp_path):
    chosen = VersionOptions(two_stacks, directory=STACK.version_path)
    where = {"where": chosen, "output": tmp_path / "report"}
    with pytest.raises(BadInput, match="recording has its own"):
        model_report_command("some.json.gz", layout="tp=4", **where)
    with pytest.raises(BadInput, match="some.json.gz"):
        model_report_command("some.json.gz", **where)
    with pytest.raises(BadInput, match="--model"):
        model_report_command("no-such-model", **where)
    assert not (tmp_path / "report").exists()
