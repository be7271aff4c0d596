"""Graphs that torch_npu captures, streams and events, and the memory of the device."""

import os
import subprocess
import sys

import pytest

from collector.engine.calls import read_calls
from collector.engine.engine_process import SITE
from tests.npu.fakecann.build import FakeCann, environment

pytestmark = [pytest.mark.torch, pytest.mark.npu]

PROGRAM = """
import torch, torch_npu
free_bytes, _ = torch.npu.mem_get_info()
x = torch.empty(1 << 20, device="npu:0")
print(free_bytes - torch.npu.mem_get_info()[0] >= 4 << 20)
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    torch.neg(x)
for _ in range(2):
    graph.replay()
torch.abs(x)
torch.npu.synchronize()
"""


def test_launches_of_a_captured_graph_are_recorded_when_it_runs(fake: FakeCann, tmp_path):
    log = tmp_path / "calls"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(fake, log=log) | {"TASK_QUEUE_ENABLE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("True\n")  # an engine sizes its cache by the free memory
    names = [call.text if call.kind == "HOST" else call.name for call in read_calls(log)]
    replayed = ["HOST replay(1)", "aclnnNeg", "HOST replay_end(1)"]
    captured = ["HOST capture(1)", "HOST capture_end(1)"]
    assert names == [*captured, *replayed, *replayed, "aclnnAbs"]


STREAMS = """
import torch, torch_npu
x = torch.empty(1 << 10, device="npu:0")
pinned = torch.empty(16, pin_memory=True)
side, event = torch.npu.Stream(), torch.npu.Event()
torch.neg(x)
event.record()
with torch.npu.stream(side):
    event.wait()
    torch.abs(x)
del event
graph, forked, joined = torch.npu.NPUGraph(), torch.npu.Event(), torch.npu.Event()
with torch.npu.graph(graph):
    forked.record()
    with torch.npu.stream(side):
        forked.wait()
        torch.exp(x)
        joined.record()
    joined.wait()
    torch.neg(x)
del forked, joined
torch.npu.synchronize()
graph.replay()
pinned.to("npu:0", non_blocking=True)
torch.abs(x)  # with which the run of a graph is written
"""


def test_calls_of_the_host_are_recorded_with_their_streams(fake: FakeCann, tmp_path):
    log = tmp_path / "calls"
    env = environment(fake, log=log) | {"TASK_QUEUE_ENABLE": "0", "FAKE_NPU_ORDER": "1"}
    subprocess.run([sys.executable, "-c", STREAMS], env=env, check=True)
    calls = [call for call in read_calls(log) if call.kind == "HOST" or call.kind == "ACLNN"]
    names = [call.name for call in calls]
    begin = names.index("aclnnNeg")
    eager, (replay, end) = calls[begin : begin + 4], map(names.index, ("replay", "replay_end"))
    assert [call.name for call in eager] == ["aclnnNeg", "record", "wait", "aclnnAbs"]
    main, recorded, waiting, aside = (call.stream for call in eager)
    assert main == recorded != waiting == aside
    assert eager[1].arguments == eager[2].arguments  # one event
    inside = calls[replay + 1 : end]
    assert [call.name for call in inside] == [
        *("record", "wait", "aclnnExp", "record", "wait", "aclnnNeg"),
    ]
    captured = inside[0].stream  # of the capture
    assert [call.stream for call in inside] == [captured, aside, aside, aside, captured, captured]
    assert {call.ns for call in calls[replay : end + 1]} == {calls[replay].ns}
    (copy,) = (call for call in calls[end:] if call.name == "copy")
    assert copy.arguments == ("1", "64", "0")  # pinned memory: the host does not wait
    assert "synchronize_stream" not in names[end:]
    times = [call.ns for call in calls]
    assert times == sorted(times)


WORKING = """
import time, torch, torch_npu
from opmeter_launches import computed_ns, not_of_the_host, of_the_host

def work(seconds):
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass

def computed():
    with not_of_the_host:
        return computed_ns()

x = torch.abs(torch.ones(4, device="npu:0"))
first = computed()
with not_of_the_host:
    work(0.2)
    with of_the_host:
        work(0.1)
for _ in range(1000):
    with not_of_the_host:
        pass
torch.abs(x)
print(first, computed())
"""


def test_what_the_tool_computes_is_no_time_of_the_host(fake: FakeCann, tmp_path):
    log = tmp_path / "calls"
    env = environment(fake, log=log) | {"TASK_QUEUE_ENABLE": "0", "FAKE_NPU_ORDER": "1"}
    env["PYTHONPATH"] = os.pathsep.join((str(SITE), env["PYTHONPATH"]))
    words = [sys.executable, "-c", WORKING]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    first, last = map(int, done.stdout.splitlines()[-1].split())
    assert 0.1e9 <= last - first < 0.2e9  # processor time: other load on the machine is no part
    (*_, absolute) = (call for call in read_calls(log) if call.kind == "ACLNN")
    assert first < absolute.ns <= last
