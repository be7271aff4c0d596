"""The times of single calls of an engine that serves requests."""

import pytest

from collector.codec.errors import BadInput
from collector.engine.engine_process import EngineSettings, recording_of
from collector.engine.model_folder import ModelFolder
from collector.engine.recorded_calls import pass_of_call
from collector.ranks.topology import Grid
from jobs.campaign.source_kinds import StepCollectives
from jobs.planning.predicted_passes import launches_of
from jobs.planning.served_calls import ASSUMED, device_budget, served_call
from tests.unit.jobs.planning.test_jobs_step_time import assumed, known, timer

pytestmark = pytest.mark.fast

MATMUL = "ACLNN aclnnMatmul(bf16[4,512]:ND, bf16[512,1024]:ND/1,512, bf16[4,1024]:ND, 1)"
MESSAGE = "HCCL HcclAllReduce(bf16[2048]:ND, 0, ranks=4)"
RECORDING = recording_of(
    ModelFolder("tiny", {"config.json": b"{}"}), EngineSettings("vllm-ascend-0.18", (), tp=4)
)


def called(text):
    one = pass_of_call(text)
    tables = launches_of(RECORDING, one, StepCollectives(Grid((48, 8, 2))), "npu")
    return served_call(
        timer(known(100, 90, 120), assumed(call=7, wait=30)).of_recording(one, tables)
    )


def test_launch_takes_time_of_the_host_and_its_duration():
    found = called(MATMUL)
    assert found.host_us == (7, 7, 7)
    assert found.device_us == (100, 90, 120)
    assert found.source == "exact"


def test_message_waits_for_other_ranks():
    found = called(MESSAGE)
    assert found.device_us == (130, 120, 150)


def test_width_of_the_device_is_that_of_all_its_calls():
    other = MATMUL.replace(", 1)", ", 0)")  # a call of the same case
    calls = [(called(MATMUL), 30), (called(other), 20), (called("HOST copy(1, 4096, 0)"), 1)]
    rows = device_budget(calls)
    assert [(row.times, row.width_us) for row in rows[:1]] == [(50, 1500)]
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert rows[1].launch is None and rows[1].times == 1


def test_copy_is_assumed():
    found = called("HOST copy(1, 4096, 0)")
    value_us, low_us, high_us = found.device_us
    assert 0 < low_us < value_us < high_us
    assert (found.host_us[0], found.source) == (7, ASSUMED)


@pytest.mark.parametrize(
    ("name", "host_us"), [("record", 0), ("synchronize_stream", 0), ("replay", 7), ("update", 7)]
)
def test_other_calls_of_the_host_take_no_time_of_the_device(name, host_us):
    found = called(f"HOST {name}")
    assert (found.host_us[0], found.device_us[0]) == (host_us, 0)


def test_call_whose_lengths_only_the_device_has_is_refused():
    with pytest.raises(BadInput):
        pass_of_call("ACLNN aclnnSparseFlashAttention(bf16[4,16,512]:ND)")
