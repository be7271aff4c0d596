"""The GPUs of a session, from recorded outputs of nvidia-smi."""

import os

import pytest

from collector.codec.errors import HostFault
from collector.host.gpus import Gpu, list_gpus, parse_nvidia_smi, visible_gpus
from collector.host.stack import cuda_stack, device_serial
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

EIGHT = "".join(
    f"{i}, NVIDIA H100 80GB HBM3, GPU-{i}f2b7d5e-0000-4d5c-8d5c-00000000000{i}, 550.54.15\n"
    for i in range(8)
)
MIXED = """0, NVIDIA H100 80GB HBM3, GPU-aa11, 550.54.15
1, NVIDIA GeForce RTX 4090, GPU-ab22, 550.54.15
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a program of this name on PATH, with a given script."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(script):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    put(f"cat <<END\n{MIXED}END")
    return put


def test_every_gpu_has_its_name_uuid_and_driver():
    found = parse_nvidia_smi(EIGHT)
    assert [gpu.index for gpu in found] == list(range(8))
    uuid = "GPU-7f2b7d5e-0000-4d5c-8d5c-000000000007"
    assert found[7] == Gpu(7, "NVIDIA H100 80GB HBM3", uuid, "550.54.15")


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed, so, a, b"])
def test_output_without_gpus_is_refused_and_quoted(text):
    with pytest.raises(HostFault, match=naming("nvidia-smi", "GPU", text.strip())):
        parse_nvidia_smi(text)


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("3,1", [3, 1]),
        (" 6 , 7 ", [6, 7]),
        ("GPU-5f2b7d5e-0000-4d5c-8d5c-000000000005,0", [5, 0]),
        ("GPU-2f2b", [2]),
        ("1,8,2", [1]),  # like CUDA: nothing after an invalid one
        ("", []),
        ("-1", []),
        ("GPU-", []),  # ambiguous
        ("NoDevFiles", []),
    ],
)
def test_only_visible_gpus_count_and_have_cudas_numbers(variable, seen):
    found = visible_gpus(parse_nvidia_smi(EIGHT), variable)
    assert [gpu.uuid[4] for gpu in found] == [str(i) for i in seen]
    assert [gpu.index for gpu in found] == list(range(len(seen)))


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("1,1", ("'1,1'", "GPU 1")),
        ("GPU-1f2b,1", ("'GPU-1f2b,1'", "GPU 1")),
        ("MIG-1f2b", ("'MIG-1f2b'",)),
    ],
)
def test_unusable_cuda_visible_devices_is_refused(variable, named):
    with pytest.raises(HostFault, match=naming("CUDA_VISIBLE_DEVICES", *named)):
        visible_gpus(parse_nvidia_smi(EIGHT), variable)


def test_two_gpu_models_are_not_one_stack():
    named = ("NVIDIA GeForce RTX 4090", "NVIDIA H100", "CUDA_VISIBLE_DEVICES")
    with pytest.raises(HostFault, match=naming(*named)):
        cuda_stack("2.13.0+cu130", parse_nvidia_smi(MIXED))
    stack = cuda_stack("2.13.0+cu130", parse_nvidia_smi(MIXED)[:1])
    assert (stack.device, stack.driver) == ("CUDA_NVIDIA_H100_80GB_HBM3", "550.54.15")


def test_cuda_visible_devices_selects_the_queried_gpus(nvidia_smi, monkeypatch):
    assert len(list_gpus()) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert list_gpus() == (Gpu(0, "NVIDIA GeForce RTX 4090", "GPU-ab22", "550.54.15"),)
    assert device_serial("cuda", 0) == "GPU-ab22"
    with pytest.raises(HostFault, match=naming("cuda device 1")):
        device_serial("cuda", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(HostFault, match=naming("CUDA_VISIBLE_DEVICES=''")):
        list_gpus()


def test_a_cpu_has_no_serial():
    assert device_serial("cpu", 0) is None


def test_failing_nvidia_smi_is_reported_in_one_line(nvidia_smi, monkeypatch):
    nvidia_smi("echo the driver is not loaded >&2; exit 9")
    with pytest.raises(HostFault, match="the driver is not loaded"):
        list_gpus()
    monkeypatch.setattr("collector.host.processes._TOOL_PATIENCE_S", 0.1)
    nvidia_smi("exec sleep 5")
    with pytest.raises(HostFault, match=naming("nvidia-smi", "0.1 s")):
        list_gpus()
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(HostFault, match=naming("nvidia-smi", "PATH")):
        list_gpus()
