"""A backend that registers events with torch's profiler gets a trace with its kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from jobs.cli.trace import merge_trace_command

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
pytestmark = pytest.mark.torch
SOURCE = Path(__file__).parents[3] / "event_device" / "profiler_stubs.cpp"


def test_operators_of_a_backend_with_events_become_kernels(tmp_path: Path) -> None:
    from tests.event_device.install import compiled

    library = compiled(SOURCE, tmp_path / "libstubs.so")
    command = [sys.executable, "-m", "tests.event_device.profiled", str(library), str(tmp_path)]
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    subprocess.run(command, check=True, env=environment)
    times, output = tmp_path / "device_times.json", tmp_path / "merged.json"
    merge_trace_command(tmp_path / "trace.json", times, output=output)
    events = json.loads(output.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert [one["name"] for one in kernels] == ["aten::mm", "aten::_softmax", "aten::copy_"]
    measured = json.loads(times.read_text()).values()
    assert {one["dur"] for one in kernels} <= {one["kernel_time"] for one in measured}
    for one, after in zip(kernels, kernels[1:], strict=False):
        assert one["ts"] + one["dur"] <= after["ts"]


def test_a_profile_without_device_times_is_refused(tmp_path: Path) -> None:
    from collector.capture import write_device_times

    with torch.autograd.profiler.profile() as profiler:
        torch.ones(2).neg()
    with pytest.raises(BadInput) as error:
        write_device_times(profiler, tmp_path / "times.json")
    assert error.value.path == tmp_path / "times.json"
    assert not (tmp_path / "times.json").exists()
