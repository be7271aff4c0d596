"""The fake CANN: how it is built, its records of ATB, registered kernels and collectives, and how a
launch may end a process."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from collector.engine import build as building
from collector.engine import wheel
from collector.engine.calls import read_calls
from collector.engine.kernels import kernel_of
from collector.engine.wheel import NoRecordingRuntime
from collector.profiles.launches import read_op_summary
from tests.npu.fakecann.build import LAUNCHES, FakeCann, build_fake_cann, environment
from tests.npu.fakecann.faults import Fault, write_faults
from tests.npu.fakecann.truth import truth_us

pytestmark = [pytest.mark.npu, pytest.mark.torch]

ROOT = Path(__file__).parents[3]
PROGRAM = """
import torch, torch_npu
torch_npu.npu.config.allow_internal_format = True
torch.npu.set_device(0)
bf16 = torch.bfloat16
x = torch.empty(4, 8, dtype=bf16, device="npu:0")
"""


def run(env: dict[str, str], program: str, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", PROGRAM + program]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def texts(log: Path) -> list[str]:
    return [call.text for call in read_calls(log)]


def test_torch_npu_cannot_be_imported_without_the_stubs(fake: FakeCann):
    env = environment(fake) | {"LD_LIBRARY_PATH": ""}
    done = run(env, "")
    assert done.returncode == 1
    assert "ImportError: libhccl.so: cannot open shared object file" in done.stderr


ATB_AND_REGISTERED = f"""
import sys
sys.path.append({str(LAUNCHES)!r})
from opmeter_launches import record
key, cache = (torch.empty(*s, dtype=bf16, device="npu:0") for s in ((5, 3, 16), (11, 8, 3, 16)))
slots = torch.empty(5, dtype=torch.int32, device="npu:0")
torch_npu._npu_reshape_and_cache(key, key, cache, cache, slots)
record(torch, "my_kernel", x[:, 1:3], None, [x, x], [1, 2], 0.5, "NZ", True)
torch.neg(x)
"""
COLLECTIVES = """
import os, torch.distributed as dist
dist.init_process_group("hccl", init_method="file://" + os.environ["MEETING"], rank=0, world_size=1)
dist.all_reduce(x)
dist.broadcast(x, 0)
"""
NEXT = """
torch.npu.synchronize()
print("launches", sum(1 for line in open(__import__("os").environ["FAKE_CANN_LOG"])), flush=True)
"""


@dataclass(frozen=True)
class Written:
    """Return the calls that each part of a program made."""

    atb_and_registered: list[str]
    collectives: list[str]


@pytest.fixture(scope="module")
def written(fake: FakeCann, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Run one program."""
    folder = tmp_path_factory.mktemp("written")
    log = folder / "log"
    env = environment(fake, log=log) | {"MEETING": str(folder / "meeting")}
    parts = ("", ATB_AND_REGISTERED, COLLECTIVES)
    program = "".join(part + NEXT for part in parts) + "os._exit(0)\n"
    done = run(env, program)
    assert done.returncode == 0, done.stderr
    ends = [int(line.split()[1]) for line in done.stdout.splitlines() if "launches" in line]
    calls = texts(log)
    return Written(*(calls[a:b] for a, b in pairwise(ends)))


def test_atb_and_registered_kernels_are_recorded_in_order(written: Written):
    assert written.atb_and_registered == [
        "ATB ReshapeAndCacheParam(bf16[5,3,16]:ND, bf16[5,3,16]:ND, bf16[11,8,3,16]:ND, "
        "bf16[11,8,3,16]:ND, i32[5]:ND -> bf16[11,8,3,16]:ND, bf16[11,8,3,16]:ND)",
        "CUSTOM my_kernel(bf16[4,2]:ND/8,1+1<32>, 0, {bf16[4,8]:ND, bf16[4,8]:ND}, ints(1,2), "
        'f64=0.5, "NZ", 1)',
        "ACLNN aclnnNeg(bf16[4,8]:ND, bf16[4,8]:ND)",
    ]


def test_collectives_are_recorded(written: Written):
    assert written.collectives == [
        "HCCL HcclAllReduce(bf16[32]:ND, 0, ranks=1)",
        "HCCL HcclBroadcast(bf16[32]:ND, 0, ranks=1)",
    ]


def test_launch_crashes_once_at_the_configured_number(crashed_and_complete):
    one, _ = crashed_and_complete
    launches = list(read_op_summary(_summary(one)))
    assert [x.op_type for x in launches] == ["Abs", "Neg", "Abs", "Neg", "Abs"]


def test_launches_under_msprof_are_rows_with_simulated_durations(crashed_and_complete):
    _, two = crashed_and_complete
    (log,) = two.glob("PROF_*/device_0/data/launches.txt")
    calls = read_calls(log)
    launches = list(read_op_summary(_summary(two)))
    assert len(launches) == 20
    assert [x.duration_us for x in launches] == [truth_us(c, kernel_of(c)) for c in calls]
    assert [x.cells["Input Shapes"] for x in launches] == [f'"{n + 1},8"' for n in range(20)]


@pytest.fixture(scope="module")
def crashed_and_complete(fake: FakeCann, tmp_path_factory: pytest.TempPathFactory):
    """Return the folders of two runs under msprof; in the first the third Neg crashes."""
    folder = tmp_path_factory.mktemp("crashed")
    faults = write_faults(folder / "faults.json", Fault("crash", kernel="Neg", nth=3, times=1))
    env = environment(fake, faults=faults)
    crashing = "\nfor n in range(5): torch.abs(x), torch.neg(x)\ntorch.npu.synchronize()\n"
    whole = "\nfor n in range(20): torch.neg(torch.empty(n + 1, 8, device='npu:0'))\n"
    one, two = folder / "one", folder / "two"
    assert run(env, crashing, "msprof", f"--output={one}").returncode == 139
    assert run(env, whole, "msprof", f"--output={two}").returncode == 0
    return one, two


def test_launches_before_a_hang_are_exported_later(fake: FakeCann, tmp_path: Path):
    program = "\ntorch.abs(x)\ntorch.neg(x)\ntorch.npu.synchronize()\n"
    faults = write_faults(tmp_path / "faults.json", Fault("hang", call="aclnnNeg(bf16[4,8]"))
    command = ["msprof", f"--output={tmp_path}", sys.executable, "-c", PROGRAM + program]
    env = environment(fake, faults=faults)
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for_a_launch(tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (folder,) = tmp_path.glob("PROF_*")
    assert subprocess.run(["msprof", "--export=on", f"--output={folder}"], env=env).returncode == 0
    assert [launch.op_type for launch in read_op_summary(_summary(tmp_path))] == ["Abs"]


@pytest.mark.slow
def test_two_processes_may_build_concurrently(fake: FakeCann, tmp_path: Path):
    (tmp_path / fake.site.name).symlink_to(fake.site)
    program = (
        "from tests.npu.fakecann.build import build_fake_cann; print(build_fake_cann().libraries)"
    )
    env = dict(os.environ, OPMETER_CACHE=str(tmp_path))
    command = [sys.executable, "-c", program]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    message = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    (libraries,) = map(Path, message)
    assert (libraries / "libascendcl.so").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [fake.site.name, libraries.parent.name]
    )


def test_build_is_cached(fake: FakeCann, monkeypatch):
    monkeypatch.setattr(building, "_compile", None)
    assert build_fake_cann() == fake


def test_machine_without_a_compiler_is_refused_with_the_packages_to_install(monkeypatch):
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    with pytest.raises(NoRecordingRuntime, match=r"gcc, g\+\+, nm, readelf.*apt-get install"):
        build_fake_cann()


def test_machine_without_the_wheel_is_refused_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("OPMETER_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        NoRecordingRuntime, match="pip install --no-deps --target .* torch_npu==2.13.0"
    ):
        wheel.site()
    assert list(tmp_path.iterdir()) == []


def _wait_for_a_launch(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(log.stat().st_size for log in folder.glob("PROF_*/device_0/data/launches.txt")):
            return
        time.sleep(0.05)
    raise TimeoutError("nothing was launched")


def _summary(folder: Path) -> Path:
    (path,) = folder.glob("PROF_*/mindstudio_profiler_output/op_summary_*.csv")
    return path
