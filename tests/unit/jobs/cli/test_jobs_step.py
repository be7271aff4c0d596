"""`opmeter step` as a user calls it."""

import json
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.database.host_sessions import HostDecode
from collector.store.opening import open_store
from tests.unit.collector.database.host_maker import STACK as HOST_STACK
from tests.unit.collector.database.host_maker import host_session, publish_sessions
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.cli.small_model import LACKS, MODEL

pytestmark = [pytest.mark.fast, pytest.mark.thorough]

RECORDED = Path(__file__).parents[3] / "fixtures" / "recordings" / "qwen3-32b_tp=8.json.gz"
DECODE = (MODEL, "--requests", "4", "--context", "36")


@pytest.fixture
def folder(small_model_folder):
    return small_model_folder


def step(*words):
    found = invoked("step", *words, "--root", "data")
    assert found.exception is None, found.exception
    return found.stdout


def passes_of(*words):
    return json.loads(step(*words, "--json"))["passes"]


def test_step_of_a_model_is_in_its_interval_and_the_sum_of_its_parts(folder):
    (one,) = passes_of(*DECODE)
    assert one["metric"] == "TPOT" and one["mode"] == "graph"
    assert one["low_us"] < one["time_us"] < one["high_us"]
    assert sum(one["parts_us"].values()) == pytest.approx(one["time_us"])
    assert sum(row["time_us"] for row in one["critical_path"]) == pytest.approx(one["time_us"])
    assert sum(row["share"] for row in one["error_budget"]) == pytest.approx(1)
    assert one["unknown"]["launches"] == 1, LACKS
    assert one["parts_us"]["computing"] > 0 and one["parts_us"]["unknown"] > 0


def test_host_bounds_an_eager_step(folder):
    (slow,) = passes_of(*DECODE, "--mode", "eager", "--host-us", "5000")
    (fast,) = passes_of(*DECODE, "--mode", "eager", "--host-us", "0")
    calls = round(slow["parts_us"]["host"] / 5000)
    assert calls > 20 and slow["time_us"] > 5000 * calls
    assert fast["parts_us"]["host"] == 0
    (graph,) = passes_of(*DECODE, "--host-us", "10:40")
    assert graph["parts_us"]["host"] == 20


def test_prompt_gives_the_time_to_the_first_token(folder):
    (one,) = passes_of(MODEL, "--prompt", "32", "--host-us", "9")
    assert (one["metric"], one["mode"]) == ("TTFT", "eager")


def test_step_prints_what_is_assumed(folder):
    text = step(*DECODE, "--mode", "eager")
    assert text.startswith("TPOT") and "assumed, no data" in text
    assert "given by --host-us" in step(*DECODE, "--mode", "eager", "--host-us", "50")


def test_recording_has_a_time_for_each_of_its_passes(folder):
    words = (RECORDED, "--trace", "pass.json", "--wait-us", "0:10")
    prefill, decode = passes_of(*words)
    assert (prefill["metric"], decode["metric"]) == ("TTFT", "TPOT")
    assert decode["order"] == "recorded" and decode["mode"] == "eager"
    events = json.loads((folder / "pass.json").read_text())["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert names == {"host", "stream 1", "stream 2", "stream 3", "stream 4"}
    assert {one["pid"] for one in events} == {1, 2}
    work = [one for one in events if one["ph"] == "X" and one["pid"] == 2]
    assert max(one["ts"] + one["dur"] for one in work) == pytest.approx(decode["time_us"])
    critical = sum(one["dur"] for one in work if one["args"]["critical path"])
    assert critical == pytest.approx(decode["time_us"])


def test_measured_host_takes_the_place_of_the_assumption(folder):
    decode = HostDecode("qwen3-32b", "tp=8,dp=1,ep=1", "eager")
    times = {"pass": 50_000.0, "launch": 45.0, "aclnnMatmul": 40.0}
    publish_sessions(open_store("data"), *(host_session(times, n, decode) for n in range(2)))
    words = ("qwen3-32b", "--layout", "tp=8", "--mode", "eager", "--cann-us", "7")
    text = step(*words)
    assert f"measured: {HOST_STACK.version_path}, 2 sessions" in text
    assert "given by --cann-us" in text
    (one,) = passes_of(*words, "--host", HOST_STACK.version_path)
    launches = round(50_000 / 45)
    assert one["host"]["time_us"] == pytest.approx(50_000 + 7 * launches, rel=0.01)
    assert one["host"]["measured_us"] == pytest.approx(50_000, rel=0.01)
    (graph,) = passes_of(*words[:3])  # no data of its mode
    assert graph["host"] is None
    (given,) = passes_of(*words[:5], "--host-us", "50")
    assert given["host"] is None


def test_cases_that_narrow_the_interval_are_a_source_of_a_campaign(folder):
    words = (*DECODE, "--host-us", "50", "--misses", "wide.jsonl")
    text = step(*words)
    assert "misses: wide.jsonl" in text
    (one,) = passes_of(*words)
    assert len(one["to_halve"]["cases"]) == 1
    text = "campaign: c\nsources: [{misses: wide.jsonl}]\nbackend: cpu\n"
    (folder / "wide.yaml").write_text(text)
    planned = invoked("plan", "wide.yaml", "--root", "data", "--dry-run", "--json")
    assert planned.exit_code == 0, planned.exception
    assert json.loads(planned.stdout)["forecast"]["cases"] == 1


def test_device_without_a_version_gives_a_range(folder):
    words = ("qwen3-32b", "--layout", "tp=4", "--root", "nowhere")
    found = invoked("step", *words)
    assert isinstance(found.exception, BadInput) and "--device" in str(found.exception)
    found = invoked("step", *words, "--device", "ATLAS_800_A3_752T_128G_DIE", "--json")
    (one,) = json.loads(found.stdout)["passes"]
    assert one["parts_us"]["computing"] == one["parts_us"]["communication"] == 0
    assert one["low_us"] * 3 < one["high_us"]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ((*DECODE, "--mode", "fast"), "--mode"),
        ((*DECODE, "--host-us", "90:40"), "--host-us"),
        ((*DECODE, "--host-us", "-1"), "--host-us"),
        ((*DECODE, "--wait-us", "1:2:3"), "--wait-us"),
        ((*DECODE, "--cann-us", "x"), "--cann-us"),
        ((*DECODE, "--host-us", "50", "--cann-us", "5"), "--cann-us"),
        ((*DECODE, "--host", "NO_HOST/vllm_ascend/vllm0.18.0_torch2.9_cann8.5"), "--host"),
        ((*DECODE, "--prompt", "32"), "--prompt"),
        ((RECORDED, "--layout", "tp=4"), "--layout"),
        (("no.json.gz",), "no.json.gz"),
        (("no-such-model",), "--model"),
        ((*DECODE, "--grid", "x"), "--grid"),
        ((*DECODE, "--device", "X"), "--device"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, words, option):
    found = invoked("step", *words, "--root", "data")
    assert isinstance(found.exception, BadInput) and option in str(found.exception)
    assert not found.stdout
