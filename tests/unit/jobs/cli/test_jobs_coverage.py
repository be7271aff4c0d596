"""`opmeter coverage` as a user calls it."""

import csv
import json
import re
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.profiles.kernel_details import read_profile
from collector.store import open_store
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.sources import completed_records, load_sources
from tests.fixtures.profiles.variants import ProfileRow, collective, write_profile
from tests.unit.collector.database.campaign_maker import (
    PATH,
    STACK,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.cli.small_model import LACKS, MODEL, SERVING, coverage, write_database
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast


@pytest.fixture
def folder(small_model_folder):
    return small_model_folder


@pytest.mark.thorough
def test_missing_cases_of_a_campaign_are_listed_by_kernel_and_case(folder):
    message = coverage("campaign.yaml").stdout
    lines = message.splitlines()
    assert lines[0].split() == ["version", PATH]
    assert LACKS in "".join(line for line in lines if line.endswith("100 % missing"))
    gaps = re.findall(rf"^ +[0-9.]+ % missing +{LACKS} (.+)$", message, flags=re.MULTILINE)
    assert sorted(gaps) == ["1,151936 FLOAT", "4,151936 FLOAT"]


def test_coverage_of_a_campaign_is_limited_to_its_operators(folder):
    every = json.loads(coverage("campaign.yaml", "--json").stdout)["cases"]
    text = (folder / "campaign.yaml").read_text()
    (folder / "some.yaml").write_text(f"{text}operators: [{LACKS}, SwiGlu]\n")
    some = json.loads(coverage("some.yaml", "--json").stdout)["cases"]
    assert {one["kernel_type"] for one in some} == {LACKS, "SwiGlu"}
    assert some == [one for one in every if one["kernel_type"] in (LACKS, "SwiGlu")]
    (folder / "some.yaml").write_text(f"{text}operators: [{LACKS}x]\n")
    assert isinstance(coverage("some.yaml").exception, BadInput)


@pytest.mark.thorough
def test_coverage_of_a_profile_reports_the_share_of_device_time(folder):
    start = 1764246877083
    rows = [
        ProfileRow(duration="25.0", start=f"{start}000.000"),
        collective(f"{start}400.000", "75.0"),
    ]
    write_profile(folder / "run", "K5", rows)
    lines = coverage("--profile", "run").stdout.splitlines()
    (reported,) = (line for line in lines if line.startswith("device time"))
    assert numbers(reported) == ["25.0", "75.0"]  # the cases, and communication
    assert missing(reported, ["--grid", "opmeter comm"]) == []
    assert "device time" not in coverage("campaign.yaml").stdout


@pytest.mark.parametrize("run", ["train_cann8.3rc1_rank0", "inference_cann9.1"])
def test_coverage_of_a_real_run_is_complete_except_for_removed_cases(
    real_profiles, tmp_path, monkeypatch, run
):
    """It has all cases except those of MatMulV2; shares come from the profiler's own rows."""
    monkeypatch.chdir(tmp_path)
    profile = real_profiles / f"{run}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    records = completed_records(read_profile([profile]).records)
    there = [record for record in records if record.kernel_type != "MatMulV2"]
    write_database(tmp_path / "data", there)
    reported = json.loads(coverage("--profile", str(profile), "--json").stdout)
    statuses = {one["case_id"]: one["status"] for one in reported["cases"]}
    assert set(statuses) == {record.case_id for record in records}
    known = {record.case_id for record in there}
    assert {case for case, status in statuses.items() if status == "exact"} == known
    with (profile / "kernel_details.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.DictReader(file) if row["Accelerator Core"] != "COMMUNICATION"]
    times = [(row["Type"], float(row["Duration(us)"])) for row in rows]
    whole = sum(us for _, us in times)
    lacks = sum(us for kernel, us in times if kernel == "MatMulV2")
    assert reported["metrics"]["m5"] == pytest.approx(1 - lacks / whole, rel=1e-6)
    assert reported["metrics"]["m1"] == pytest.approx(
        1 - sum(kernel == "MatMulV2" for kernel, _ in times) / len(times)
    )


@pytest.mark.thorough
def test_the_options_of_a_model_are_those_of_a_source(folder):
    of_campaign = json.loads(coverage("campaign.yaml", "--json").stdout)
    words = ("--concurrency", "1", "--concurrency", "4", *SERVING)
    of_options = json.loads(coverage("--model", MODEL, "--json", *words).stdout)
    assert of_options == of_campaign
    assert of_campaign["metrics"]["m2"] < 1 and of_campaign["version"] == PATH
    norms = [one for one in of_campaign["cases"] if one["inputs"] == ["4,4096", "4,4096", "4096"]]
    assert [one["launches"] for one in norms] == [7 * 72]  # of seven decodes, four requests each


@pytest.mark.thorough
def test_unmeasured_batch_is_between_or_outside_of_measured_ones(folder):
    statuses = {}
    for requests in ("2", "9"):
        words = ("--concurrency", requests, *SERVING, "--json")
        reported = json.loads(coverage("--model", MODEL, *words).stdout)
        statuses[requests] = {
            one["status"] for one in reported["cases"] if one["kernel_type"] == "Log"
        }
    assert statuses == {"2": {"between"}, "9": {"outside"}}


@pytest.mark.thorough
def test_missing_cases_are_written_as_a_source(folder):
    message = coverage("campaign.yaml", "--missing", "gaps/v1")
    assert missing(message.stderr, ["2 cases", "tree: gaps/v1"]) == []
    text = "campaign: c\nsources: [{tree: gaps/v1}]\nbackend: cpu\n"
    (gaps,) = load_sources(campaign_from_text(text, path="c", base=folder), MemoryStore())
    reported = json.loads(coverage("campaign.yaml", "--json").stdout)
    lacking = {one["case_id"] for one in reported["cases"] if one["status"] != "exact"}
    assert {record.case_id for record in gaps.records} == lacking


@pytest.mark.thorough
def test_messages_are_covered_if_a_grid_is_given(folder):
    words = ("--model", "qwen3-32b", "--layout", "tp=16,nz=2", "--concurrency", "4")
    (not_looked_up,) = re.findall("^messages .*", coverage(*words).stdout, flags=re.MULTILINE)
    assert "--grid" in not_looked_up
    message = coverage(*words, "--grid", "48,8,2", "--missing", "gaps")
    assert "\nmessages " not in message.stdout and "hcom_allReduce_" in message.stdout
    of_kernels, of_messages = (int(number) for number in numbers(message.stderr))
    assert of_kernels > 0 and of_messages > 0
    assert not list((folder / "gaps").rglob("hcom*"))


@pytest.mark.thorough
def test_a_deployment_is_described_as_a_campaign_does(folder):
    words = ("--model", "qwen3-32b", "--phase", "decode", "--graph-sizes", "8", "--json")
    reported = json.loads(
        coverage(*words, "--concurrency", "5", "--max-batched-tokens", "64").stdout
    )
    rows = {one["inputs"][0] for one in reported["cases"] if one["kernel_type"] == "SwiGlu"}
    assert rows == {"8,51200"}  # no prefill, and five requests in a graph of eight


@pytest.mark.thorough
def test_serving_options_cover_uneven_mixed_and_predicted_tokens(folder):
    layout = "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8,experts=apart"
    words = ("--model", "deepseek-v3", "--layout", layout, "--concurrency", "4")
    words += ("--input", "64", "--output", "9", "--json")

    def reported(*more):
        cases = json.loads(coverage(*words, *more).stdout)["cases"]
        return {(one["kernel_type"], *one["inputs"]) for one in cases}

    plain, mixed = reported(), reported("--mixed")
    uneven = reported("--skew", "40", "--imbalance", "20")
    assert plain and ("SwiGlu", "72,4608") in mixed - plain  # 64 tokens of a prompt, three answers
    assert {row[0] for row in uneven} == {row[0] for row in plain}
    refused = coverage(*words, "--predicted-tokens", "1").exception
    assert isinstance(refused, BadInput) and "--speculative 1" in str(refused)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "data"),
    [
        ([], ["FILE", "--profile", "--model"]),
        (["campaign.yaml", "--model", "qwen3-32b"], ["FILE", "--profile", "--model"]),
        (["--model", "no-such"], ["'no-such'"]),
        (["campaign.yaml", "--directory", "elsewhere"], ["--directory", PATH]),
        (["--profile", "nowhere"], ["nowhere"]),
        (["--model", ""], ["FILE", "--profile", "--model"]),
        (["campaign.yaml", "--layout", "tp=8"], ["--model"]),
        (["campaign.yaml", "--input", "4096"], ["--model"]),
        (["--profile", "nowhere", "--release", "x"], ["--model"]),
        (["campaign.yaml", "--grid", "48,8,2"], ["--grid", "collectives"]),
        (["--model", "qwen3-32b", "--grid", "48;8"], ["--grid", "'48;8'"]),
        (["--model", "qwen3-32b", "--release", "vllm-ascend-0.1"], ["'vllm-ascend-0.1'"]),
        (["--model", "qwen3-32b", "--phase", "training"], ["phase"]),
        (["campaign.yaml", "--missing", "data"], ["data: ", "--missing"]),
    ],
)
def test_invalid_coverage_request_is_refused(folder, words, data):
    error = coverage(*words).exception
    assert isinstance(error, BadInput) and missing(str(error), data) == []


def test_every_command_takes_the_stack_that_the_variable_names(tmp_path, monkeypatch):
    """Two stacks in a store: an option, else the variable, else the only one."""
    monkeypatch.chdir(tmp_path)
    other = replace(STACK, torch="2.14.0")
    record, store = add_record(4), open_store(str(tmp_path / "data"))
    for stack, us in ((STACK, 5.0), (other, 50.0)):
        shard = MadeShard("s", [record], [answered([record], us)])
        made = MadePlan([shard], campaign=f"at-{us:.0f}", stack=stack)
        write_campaign(store, made)
        merge_plans(store, [made.name], guard=CREATE, author="test")
    write_profile(tmp_path / "run", "K5", [ProfileRow(duration="25.0")])
    shape = ("--shape", "4,64;4,64", "--dtype", "bf16")
    commands = (
        ("coverage", "--profile", "run", "--root", "data"),
        ("compare", "run", "--root", "data", "--force"),
        ("query", "Add", *shape, "--root", "data", "--json"),
        ("report", "diff", "2", "2", "--root", "data", "-o", "page"),
    )
    for words in commands:
        monkeypatch.delenv("OPMETER_DIRECTORY", raising=False)
        error = invoked(*words).exception
        assert isinstance(error, BadInput) and other.version_path in str(error), words
        monkeypatch.setenv("OPMETER_DIRECTORY", other.version_path)
        done = invoked(*words)
        pages = "".join(path.read_text() for path in tmp_path.glob("page/*.html"))
        assert done.exception is None, words
        assert other.version_path in done.stdout + pages or '"value_us": 50.0' in done.stdout, words
    monkeypatch.setenv("OPMETER_DIRECTORY", other.version_path)
    words = (*commands[0], "--directory", STACK.version_path)
    assert STACK.version_path in invoked(*words).stdout
    monkeypatch.setenv("OPMETER_DIRECTORY", "elsewhere")
    assert "'elsewhere'" in str(invoked(*commands[0]).exception)
