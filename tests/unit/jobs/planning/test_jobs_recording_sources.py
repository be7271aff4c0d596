"""Recordings as sources of a campaign."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.engine.recorded_calls import LoggedCall, PassTokens, recorded_pass
from collector.model.stack import Stack
from collector.store.in_memory import MemoryStore
from collector.workloads.recorded_step import Recording, read_recording, write_recording
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.candidates import weigh
from jobs.planning.forecast import peaks_of
from jobs.planning.generated_sources import MODEL_STEPS, recorded_cases
from jobs.planning.sources import load_sources
from jobs.planning.workload import workload_of

pytestmark = pytest.mark.fast

MATMUL = "ACLNN aclnnMatmul(bf16[4,8]:ND, bf16[8,16]:ND/1,8, bf16[4,16]:ND, 0)"
NORM = "ACLNN aclnnRmsNorm(bf16[4,8]:ND, bf16[8]:ND, bf16[4,8]:ND, f32[4,1]:ND; 1e-06)"
REDUCE = "HCCL HcclAllReduce(bf16[32]:ND, 0, ranks=4)"
COUNTS = "HCCL HcclAllGather(i32[8]:ND, ranks=4)"


@pytest.fixture
def path(tmp_path):
    """A recording of a model with 64 layers, and a norm outside of them."""
    calls = [*map(LoggedCall, (MATMUL, REDUCE, COUNTS))] * 64
    one = recorded_pass(PassTokens("decode", 4, 1, 128), [*calls, LoggedCall(NORM)])
    recording = Recording(
        model="tiny",
        config_sha256="",
        release="vllm-ascend-0.18",
        layout={"tp": 4, "dp": 1, "ep": 1},
        device="A3",
        environment={},
        settings={},
        wheels={},
        host="",
        passes=(one, one),
    )
    path = tmp_path / "tiny.json.gz"
    path.write_bytes(write_recording(recording))
    return path


def campaign(path, more=""):
    text = f"""
campaign: recorded
backend: npu
devices: 16
sources:
  - recording: {path.name}
{more}"""
    return campaign_from_text(text, path="campaign.yaml", base=path.parent)


def test_recording_gives_the_workload_of_the_whole_model(path):
    found = workload_of(
        campaign(path), MemoryStore(), peaks_of(Stack(device="Ascend910_9391", torch=""))
    )
    launches = {one.record.kernel_type: one.launches for one in found.cases}
    assert launches == {"MatMulV2": 128, "RmsNorm": 2}  # two passes of 64 layers


def test_messages_are_cases_if_the_grid_is_known(path):
    described = campaign(path, "    collectives: {grid: [48, 8, 2]}")
    found = recorded_cases(described.sources[0], "npu")
    launches = dict(zip((r.kernel_type for r in found.records), found.launches, strict=True))
    assert launches["hcom_allReduce_"] == 128
    assert found.left_out == {"all_gather of int32": 128}
    assert "recorded" in found.records[0].extra[MODEL_STEPS]
    (loaded,) = load_sources(described, MemoryStore())
    assert "messages omitted" in loaded.planned.name


@pytest.mark.parametrize("column", ["Average Duration(us)", "MicroBench Cache"])
def test_result_that_a_recording_names_is_none(path, column):
    """A recording has no durations: its cases are planned, whatever its further columns say."""
    recording = read_recording(path)
    launches = tuple(
        replace(one, extra={column: "12.5", "Runtime x": "1"})
        for one in recording.passes[0].launches
    )
    passes = (replace(recording.passes[0], launches=launches),)
    path.write_bytes(write_recording(replace(recording, passes=passes)))
    (loaded,) = load_sources(campaign(path), MemoryStore())
    assert loaded.records and not weigh(loaded.records).in_tree
    assert all(column not in one.extra and one.extra["Runtime x"] for one in loaded.records)


def test_malformed_recording_source_is_refused(path):
    path.write_bytes(b"no recording")
    with pytest.raises(BadInput) as raised:
        load_sources(campaign(path), MemoryStore())
    assert str(path) in str(raised.value)


def test_model_settings_are_refused_next_to_a_recording(path):
    with pytest.raises(BadInput):
        campaign(path, "    release: vllm-ascend-0.18")
