"""The fake msprof exports launches; its other tests are in tests/attack/long.

The application is a script that writes lines of the log by itself, so that no torch is needed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.engine.calls import parse_call
from collector.engine.kernels import kernel_of
from collector.profiles.launches import KernelLaunch, read_op_summary
from tests.npu.fakecann.columns import counters
from tests.npu.fakecann.faults import Fault, write_faults
from tests.npu.fakecann.truth import truth_us

pytestmark = pytest.mark.npu

MSPROF = Path(__file__).parent / "fakecann" / "tools" / "profiler" / "bin" / "msprof"
ADD = "ACLNN aclnnAdd(f32[4,8]:ND, f32[4,8]:ND, i64=1, f32[4,8]:ND)"
NEG = "ACLNN aclnnNeg(bf16[6,16]:ND, bf16[6,16]:ND)"
WEIGHT = "bf16[32,64]:FRACTAL_NZ<4,2,16,16>"
NZ = f"ACLNN aclnnMatmulWeightNz(bf16[16,32]:ND, {WEIGHT}, bf16[16,64]:ND, 0)"
CALLS = (ADD, NEG, NZ, NEG, ADD)
APPLICATION = """
import os, sys
with open(os.environ["FAKE_CANN_LOG"], "a") as log:
    for i, call in enumerate(sys.argv[2:]):
        log.write(f"{1_795_000_000_000_000_000 + i * 1000} 0 1 {call}\\n")
sys.exit(int(sys.argv[1]))
"""


class Profiler:
    """Runs the fake msprof in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.faults = folder / "faults.json"
        self._runs: list[Path] = []
        (folder / "application.py").write_text(APPLICATION)

    def order(self, *faults: Fault, seed: int = 0) -> None:
        write_faults(self.faults, *faults, seed=seed)

    def __call__(self, *options: str, calls=CALLS, status: int = 0, cann: str = "8.5.2") -> int:
        application = [sys.executable, str(self.folder / "application.py"), str(status), *calls]
        return self.run(f"--output={self.folder / 'prof'}", *options, *application, cann=cann)

    def run(self, *arguments: str, cann: str = "8.5.2") -> int:
        env = dict(os.environ, FAKE_CANN_VERSION=cann)
        if self.faults.exists():
            env["FAKE_CANN_FAULTS"] = str(self.faults)
        command = [sys.executable, str(MSPROF), *arguments]
        status = subprocess.run(command, env=env, capture_output=True, timeout=60).returncode
        self.runs()
        return status

    def start(self, *calls: str) -> "subprocess.Popen[bytes]":
        application = [sys.executable, str(self.folder / "application.py"), "0", *calls]
        command = [sys.executable, str(MSPROF), f"--output={self.folder / 'prof'}", *application]
        return subprocess.Popen(command)

    def runs(self) -> list[Path]:
        """Return them in the order of creation: their names depend on a clock that may be set
        back."""
        found = sorted((self.folder / "prof").glob("PROF_*"))
        self._runs += [path for path in found if path not in self._runs]
        return self._runs

    def files(self, run: int = -1) -> list[Path]:
        exported = self.runs()[run] / "mindstudio_profiler_output"
        return sorted(exported.glob("op_summary_*.csv"))

    def launches(self, run: int = -1) -> list[KernelLaunch]:
        return [launch for path in self.files(run) for launch in read_op_summary(path)]

    def types(self, run: int = -1) -> list[str]:
        return [launch.op_type for launch in self.launches(run)]


@pytest.fixture
def msprof(tmp_path: Path) -> Profiler:
    return Profiler(tmp_path)


def kernels(calls=CALLS) -> list[str]:
    return [kernel_of(parse_call(call)) for call in calls]


def test_each_launch_is_a_row_in_order_with_its_simulated_duration(msprof):
    assert msprof("--task-time=l1", "--aic-metrics=PipeUtilization") == 0
    launches = msprof.launches()
    assert [launch.op_type for launch in launches] == kernels()
    truths = [truth_us(parse_call(call), kernel_of(parse_call(call))) for call in CALLS]
    assert [launch.duration_us for launch in launches] == truths
    assert all(a.start_ns < b.start_ns for a, b in zip(launches, launches[1:], strict=False))
    assert set(launches[0].counters) == set(counters("PipeUtilization"))
    assert launches[2].cells == {
        "OP State": "dynamic",
        "Accelerator Core": launches[2].task_type,
        "Input Shapes": '"16,32;4,2,16,16"',
        "Input Data Types": "DT_BF16;DT_BF16",
        "Input Formats": "ND;FRACTAL_NZ",
        "Output Shapes": '"16,64"',
        "Output Data Types": "DT_BF16",
        "Output Formats": "ND",
    }
