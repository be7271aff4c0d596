"""What `opmeter emulate` refuses before an engine starts; tests/stacks has its results."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.database.host_sessions import BETWEEN, LAUNCH, PASS
from collector.engine.durations import Duration
from collector.engine.engine_process import EngineSettings
from collector.engine.model_folder import find_model
from collector.store.opening import open_store
from jobs.cli.emulate import CallTimes, Durations
from jobs.cli.options import HostOptions, VersionOptions
from tests.unit.collector.database.host_maker import DECODE, host_session, publish_sessions
from tests.unit.jobs.cli.in_process import invoked

pytestmark = pytest.mark.fast

DEVICE = ("--device", "ATLAS_800_A3_752T_128G_DIE")
RATE = ("--rate", "2")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--requests", "trace.jsonl", "--prompt", "3"),
        ("--requests", "trace.jsonl", "--rate", "0"),
        ("--requests", "none.jsonl"),
        ("--rate", "0"),
        ("--rate", "nan"),
        (*RATE, "--layout", "dp=2"),
        (*RATE, "--layout", "tp=2,ep=4"),
        (*RATE, "--generation", "A1"),
        (*RATE, "--grid", ""),
        (*RATE, "--host-us", "x"),
        (*RATE, "--host-us", "5", "--cann-us", "5"),
        (*RATE, "--engine", "[]"),
        (*RATE, "max_num_seqs=4"),
        (*RATE, "--sweep", "tp"),
        (*RATE, "--sweep", "tp=1,1"),
        (*RATE, "--sweep", "tp=1,"),
        (*RATE, "--sweep", "tp=0"),
        (*RATE, "--sweep", "graph=1"),
        (*RATE, "--graph", "full"),
        (*RATE, "--speculative", "1"),
        (*RATE, "--accepted", "0.5"),
        (*RATE, "--quantization", "w1"),
        (*RATE, "--sweep", "rate=0"),
        (*RATE, "--sweep", "tp=1,2", "tp=4"),
        (*RATE, "--sweep", "max_num_seqs=" + ",".join(map(str, range(1, 70)))),
        (*RATE, "--sweep", "dp=2,4"),  # each of them is refused
        ("--sweep", "tp=1,2"),
    ],
)
def test_options_that_exclude_each_other_or_mean_nothing_are_refused(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}')
    found = invoked("emulate", "qwen3-32b", *words, *DEVICE)
    assert isinstance(found.exception, BadInput), found.exception


def test_database_is_required_without_a_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(invoked("emulate", "qwen3-32b", *RATE).exception, BadInput)


def test_measured_host_gives_the_time_of_calls_and_between_steps(small_model_folder):
    us = {PASS: 900.0, LAUNCH: 30.0, BETWEEN: 400.0, "aclnnMatmul": 25.0, "record": 3.0}
    graph = us | {"update": 5.0, "record": 9.0}
    sessions = [host_session(us, number) for number in (1, 2)]
    sessions += [host_session(graph, 3, replace(DECODE, mode="graph"))]
    publish_sessions(open_store("data"), *sessions)
    settings = EngineSettings("vllm-ascend-0.18", (), tp=8)
    where = VersionOptions(root="data")
    host = HostOptions(cann_us="10")
    database = Durations(where, None, "48,8,2", host)
    times = CallTimes(find_model("qwen3-32b"), settings, database)
    matmul = "ACLNN aclnnMatmul(bf16[4,512]:ND, bf16[512,1024]:ND/1,512, bf16[4,1024]:ND, 1)"
    assert times.duration_of(matmul) == Duration(0, 0)  # before the load is served
    times.duration_of("RUN 0")
    assert times.host.startswith("measured")
    found = times.duration_of(matmul)
    assert found.host_ns == pytest.approx(35_000, rel=0.02) and found.device_ns > 0
    assert times.duration_of("HOST record").host_ns == pytest.approx(3000, rel=0.02)
    assert times.duration_of("HOST update").host_ns == pytest.approx(5000, rel=0.02)
    assert times.duration_of("HOST step").host_ns == pytest.approx(400_000, rel=0.02)
    times.count(matmul, 3)
    times.duration_of("RUN 2")  # at the upper ends
    times.count(matmul, 5)  # of another run
    assert [(row.record.kernel_type, row.times) for row in times.budget()] == [("MatMulV2", 3)]
    assert times.duration_of(matmul).host_ns > found.host_ns
