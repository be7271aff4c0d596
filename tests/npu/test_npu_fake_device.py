"""The stock torch_npu runs on the fake CANN, which records its calls; its other tests are in
tests/attack/long."""

import subprocess
import sys
from pathlib import Path

import pytest

from collector.engine.calls import read_calls
from tests.npu.fakecann.build import FakeCann, environment

pytestmark = [pytest.mark.npu, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, torch, torch_npu
import torch_npu.npu.utils
from collector.replay.devices import is_fake_runtime
torch_npu.npu.config.allow_internal_format = True
torch.npu.set_device(0)
print(is_fake_runtime(), torch.npu.device_count(), torch.npu.get_device_name(0))
host = torch.arange(32.0).reshape(4, 8)
print(bool((host.npu().cpu() == host).all()), flush=True)

bf16 = torch.bfloat16
x = torch.empty(4, 8, dtype=bf16, device="npu:0")
weight = torch.empty(32, 64, dtype=bf16, device="npu:0")
torch.mm(torch.empty(16, 64, dtype=bf16, device="npu:0"), weight.t())
torch.mm(torch.empty(16, 32, dtype=bf16, device="npu:0"), torch_npu.npu_format_cast(weight, 29))
torch.mul(x[:, 2:4], 2)
torch.add(x, x, alpha=0.5)
x.clamp(-1.5, 2.5)
x.sum((0, -1), keepdim=True)
torch.cat((x, x), 1)
torch_npu.npu_rms_norm(x, torch.empty(8, dtype=bf16, device="npu:0"), 3e-5)
torch.npu.synchronize()
os._exit(0)
"""
CALLS = [
    "ACLNN aclnnMm(bf16[16,64]:ND, bf16[64,32]:ND/1,64, bf16[16,32]:ND, 0)",
    "ACLOP Identity(bf16[32,64]:ND -> bf16[32,64]:FRACTAL_NZ<4,2,16,16>)",
    "ACLNN aclnnMatmulWeightNz(bf16[16,32]:ND, bf16[32,64]:FRACTAL_NZ<4,2,16,16>, "
    "bf16[16,64]:ND, 0)",
    "ACLNN aclnnMuls(bf16[4,2]:ND/8,1+2<32>, i64=2, bf16[4,2]:ND)",
    "ACLNN aclnnAdd(bf16[4,8]:ND, bf16[4,8]:ND, f64=0.5, bf16[4,8]:ND)",
    "ACLNN aclnnClamp(bf16[4,8]:ND, f64=-1.5, f64=2.5, bf16[4,8]:ND)",
    "ACLNN aclnnReduceSum(bf16[4,8]:ND, ints(0,-1), 1, 27, bf16[1,1]:ND)",
    "ACLNN aclnnCat({bf16[4,8]:ND, bf16[4,8]:ND}, 1, bf16[4,16]:ND)",
    "ACLNN aclnnRmsNorm(bf16[4,8]:ND, bf16[8]:ND, bf16[4,8]:ND, f32[4,1]:ND; 3e-05)",
]


def test_program_sees_the_devices_and_its_calls_are_recorded(fake: FakeCann, tmp_path: Path):
    """On the second and third of three devices."""
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment(fake, log=log, devices=3) | {"ASCEND_RT_VISIBLE_DEVICES": "2,1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-4:] == ["True", "2", "Ascend910_9391", "True"]
    assert [call.text for call in read_calls(log)][-len(CALLS) :] == CALLS
