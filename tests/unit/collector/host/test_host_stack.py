"""The description of this machine, from recorded files of the kernel."""

import pytest

from collector.codec.errors import BadInput
from collector.host.machine import this_cpu, usable_threads
from collector.host.stack import local_stack

pytestmark = pytest.mark.fast

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz
flags\t\t: fpu avx2 avx512f amx_bf16 sse2

processor\t: 1
model name\t: something else
"""
KUNPENG = """processor\t: 0
Features\t: fp asimd asimddp bf16
CPU implementer\t: 0x48
CPU part\t: 0xd01
"""


def test_device_is_named_by_its_processor(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(XEON)
    cpu = this_cpu(path)
    assert cpu.model.startswith("Intel(R) Xeon(R)")
    assert cpu.flags == ("amx_bf16", "avx2", "avx512f")
    assert cpu.device == f"CPU_Intel_Xeon_Platinum_8480_{cpu.threads}t"


def test_arm_processor_is_named_by_its_part_number(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(KUNPENG)
    assert this_cpu(path).model.endswith("0x48-0xd01")
    assert this_cpu(path).flags == ("asimd", "asimddp", "bf16")


@pytest.mark.parametrize(
    ("membership", "files", "threads"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/pod/a\n", {"pod/cpu.max": "400000 100000\n", "pod/a/cpu.max": "max 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "12800000 100000\n"}, 64),
        (
            "4:cpu,cpuacct:/kubepods/pod1\n",  # named outside of the container, mounted as its root
            {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            3,
        ),
        (
            "4:cpu,cpuacct:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            64,
        ),
        ("", {}, 64),
    ],
)
def test_container_has_the_cores_of_its_quota(tmp_path, monkeypatch, membership, files, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)))
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert usable_threads(tmp_path / "membership", tmp_path / "groups") == threads


def test_cpu_without_kernel_files_has_a_name(tmp_path):
    assert this_cpu(tmp_path / "absent").device.startswith("CPU_")


def test_unknown_backend_is_refused_with_the_allowed_ones():
    with pytest.raises(BadInput, match="npu.*cuda.*cpu.*events|torch"):
        local_stack("tpu")
