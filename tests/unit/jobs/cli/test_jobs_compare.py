"""`opmeter compare` as a user calls it."""

import json
import re
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.profiles.bundled import write_bundled_profile
from collector.profiles.discovery import find_profiles
from collector.profiles.kernel_details import read_profile
from collector.profiles.step_trace import FILE
from collector.store import open_store
from jobs.planning.sources import completed_records
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    answered,
    write_campaign,
)
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """A profile with marked steps, and a database that has all of its cases except products: 5 us,
    and one more for each that follows."""
    monkeypatch.chdir(tmp_path)
    found = write_bundled_profile("quickstart", tmp_path / "profile")
    _make_database(tmp_path, completed_records(read_profile([found]).records))
    (file,) = find_profiles([found])
    (file.parent / FILE).write_text(
        "Step,Computing,Communication(Not Overlapped),Free\n1,90000,5000,1000\n"
    )
    return found


def _make_database(folder, records):
    """The first case has a warning."""
    known = [record for record in records if not record.kernel_type.startswith("MatMul")]
    session = answered(known, 5.0)
    first = known[0].case_id
    session[first] = replace(session[first], warnings=("all 9 repeats were disturbed: x",))
    made = MadePlan([MadeShard("shard", known, [session])])
    store = open_store(str(folder / "data"))
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")


def compare(*words):
    return invoked("compare", *words, "--root", "data", "--force")  # the database is of a CPU


@pytest.mark.thorough
def test_profile_is_compared_with_isolated_measurements(profile):
    reported = json.loads(compare(profile, "--json").stdout)
    records = completed_records(read_profile([profile]).records)
    assert reported["version"] == PATH and len(reported["cases"]) == len(records)
    by_id = {one["case_id"]: one for one in reported["cases"]}
    apart_us = 5.0
    for record in records:
        one = by_id[record.case_id]
        is_known = not record.kernel_type.startswith("MatMul")
        assert one["in_situ"]["launches"] == record.profile.count
        assert (one["isolated"] is not None) == is_known == (one["why"] == "")
        if is_known:
            assert one["isolated"]["low_us"] < apart_us < one["isolated"]["high_us"]
            assert one["ratio"] == pytest.approx(record.profile.mean_us / apart_us)
            assert one["warnings"] == one["isolated"]["warnings"]
            assert one["warnings"] == ("disturbed" if apart_us == 5 else "")
            apart_us += 1
    whole = reported["sum"]
    parts = [value for name, value in whole.items() if name != "measured_us"]
    assert sum(parts) == pytest.approx(whole["measured_us"]) == 96_000
    assert whole["host_us"] == 1000 and whole["waiting_us"] == 5000


@pytest.mark.thorough
def test_comparison_lists_every_part_of_the_step_and_unknown_kernels(profile):
    message = compare(profile).stdout
    for part in (
        "isolated",
        "neighbours",
        "context",
        "unknown",
        "overlap",
        "messages",
        "waiting",
        "host",
    ):
        assert f"\n  {part} " in message
    (step,) = [line for line in message.splitlines() if line.startswith("step ")]
    assert numbers(step) == ["96.0", "1"]
    assert re.search(" ms missing +MatMul", message)
    assert re.search("^warnings +1 duration, .* 1 by disturbed$", message, flags=re.MULTILINE)


@pytest.mark.thorough
def test_profile_without_steps_is_compared_only_by_case(profile):
    (file,) = find_profiles([profile])
    (file.parent / FILE).unlink()
    message = compare(profile).stdout
    assert FILE in message and "M6" not in message


@pytest.mark.thorough
def test_context_durations_are_listed_next_to_isolated_ones(profile, tmp_path):
    records = completed_records(read_profile([profile]).records)
    known = [record for record in records if record.kernel_type == "Cast"]
    store = open_store(str(tmp_path / "data"))
    before = json.loads(compare(profile, "--json").stdout)
    alone_lines = compare(profile).stdout.splitlines()
    shard = MadeShard("behind", known, [answered(known, 9.0)])
    made = MadePlan([shard], number=2, head_commit=1, cache="context")
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
    reported = json.loads(compare(profile, "--json").stdout)
    behind_us = {record.case_id: 9.0 + at for at, record in enumerate(known)}
    more_us = 0.0
    for one, was in zip(reported["cases"], before["cases"], strict=True):
        assert one["isolated"] == was["isolated"]
        in_context = one["in_context"]
        assert (in_context and in_context["mean_us"]) == behind_us.get(one["case_id"])
        if in_context:
            apart_us = one["isolated"]["mean_us"]
            more_us += one["in_situ"]["launches"] * (in_context["mean_us"] - apart_us)
            assert one["context_ratio"] == one["in_situ"]["mean_us"] / in_context["mean_us"]
    was, now = before["sum"], reported["sum"]
    assert was["neighbours_us"] == 0 != more_us
    assert now["neighbours_us"] == pytest.approx(more_us)
    assert now["context_us"] == pytest.approx(was["context_us"] - more_us)
    assert now["isolated_us"] == was["isolated_us"] and now["measured_us"] == was["measured_us"]
    message = compare(profile).stdout
    lines = message.splitlines()
    (cases,) = [line for line in lines if line.startswith("cases ")]
    assert numbers(cases)[2:] == [str(len(known))]
    (of_kernel,) = [line for line in lines if line.split()[0] == "Cast"]
    alone = [line for line in alone_lines if line.split()[0] == "Cast"]
    assert len(numbers(of_kernel)) == len(numbers(*alone)) + 3  # three more quantiles
    (one,) = [one for one in reported["cases"] if one["case"].startswith("Cast 151936,1024")]
    (furthest,) = [line for line in lines if line.endswith(f": {one['case']}")]
    assert f"{behind_us[one['case_id']]:.4g}" in numbers(furthest)


@pytest.mark.thorough
def test_static_kernels_are_listed_with_their_gain(profile, tmp_path):
    assert json.loads(compare(profile, "--json").stdout)["static"] == []
    assert "static" not in compare(profile).stdout
    records = completed_records(read_profile([profile]).records)
    known = [record for record in records if record.kernel_type == "Cast"]
    static = [replace(one, cells={**one.cells, "OP State": "static"}) for one in known]
    shard = MadeShard("static", static, [answered(static, 1.0)])
    made = MadePlan([shard], number=2, head_commit=1)
    store = open_store(str(tmp_path / "data"))
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
    reported = json.loads(compare(profile, "--json").stdout)
    (gain,) = reported["static"]
    apart = {
        one["case_id"]: one["isolated"]["mean_us"] for one in reported["cases"] if one["isolated"]
    }
    counts = [record.profile.count for record in known]
    dynamic_us = sum(n * apart[one.case_id] for n, one in zip(counts, known, strict=True))
    static_us = sum(n * (1.0 + at) for at, n in enumerate(counts))
    assert (gain["kernel_type"], gain["cases"], gain["launches"]) == (
        "Cast",
        len(known),
        sum(counts),
    )
    assert gain["dynamic_us"] == pytest.approx(dynamic_us)
    assert gain["static_us"] == pytest.approx(static_us)
    assert gain["gain"] == pytest.approx(1 - static_us / dynamic_us)
    lines = compare(profile).stdout.splitlines()
    assert [line for line in lines if line.split()[0] == "Cast" and line.endswith("%")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "data"),
    [
        (["nowhere"], ["nowhere: "]),
        (["profile", "--grid", "a,b"], ["--grid", "'a,b'"]),
        (["profile", "--cache", "hot"], ["--cache", "'hot'", "warm", "cold", "context"]),
        (["profile", "--cache", "context"], ["--cache", "context", "warm", "cold"]),
        (["profile", "--directory", "other"], ["--directory"]),
        (["profile", "--grid", "1,2"], ["communication.json"]),
    ],
)
def test_invalid_comparison_is_refused(profile, words, data):
    error = compare(*words).exception
    assert isinstance(error, BadInput) and missing(str(error), data) == []


def test_npu_profile_is_not_compared_with_a_cpu_unless_forced(profile):
    error = invoked("compare", profile, "--root", "data").exception
    assert isinstance(error, BadInput) and missing(str(error), [PATH, "CPU_test_2t"]) == []
    assert compare(profile).exit_code == 0


def test_real_run_is_compared_with_its_messages(real_profiles, tmp_path, monkeypatch):
    """The database has the cases of the run's kernels, but none of its messages."""
    monkeypatch.chdir(tmp_path)
    run = real_profiles / "train_cann8.3rc1_rank0_ascend_pt"
    _make_database(tmp_path, completed_records(read_profile([run]).records))
    reported = json.loads(compare(run, "--grid", "1,8", "--json").stdout)
    assert reported["sum"]["measured_us"] == pytest.approx(810_022.46)
    messages = [one for one in reported["cases"] if one["kernel_type"].startswith("hcom")]
    assert messages and all(one["isolated"] is None for one in messages)
    assert reported["sum"]["waiting_us"] == pytest.approx(420_174.26)
    assert 0 < reported["m6"]["isolated"] < reported["m6"]["covered"] < 1
