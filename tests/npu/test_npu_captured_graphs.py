"""Graphs that torch_npu captures, and the memory of the device, on the recording runtime."""

import subprocess
import sys

import pytest

from collector.recording.calls import read_calls
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
