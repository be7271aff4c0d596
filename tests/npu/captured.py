"""Capture a small model on the device `npu` in the named ways, one after the other."""

import sys
from pathlib import Path

import torch

from collector.capture import capture

KINDS = {
    "analysed": {},
    "level2": {"level": "Level2", "metrics": "Memory"},
    "level0": {"level": "Level0", "metrics": "AiCoreNone", "shapes": False},
    "marks": {"level": "Level_none", "metrics": "AiCoreNone", "shapes": False, "marks": True},
    "database": {"export": "db", "op_attr": True},
    "raw": {"level": "Level2", "analyse": False},
    "device": {"activities": "NPU"},
    "host": {"activities": "CPU"},
    "marked_database": {"marks": True, "export": "db", "worker_name": "trainer_0"},
    "stacks": {"stack": True, "analyse": False},
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    import torch_npu

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU()).to(torch.bfloat16).npu()
    for name in sys.argv[2:]:
        with capture(folder / name, steps=3, **KINDS[name]) as session:
            for _ in range(5):
                model(torch.zeros(32, 64, dtype=torch.bfloat16, device="npu")) * 2
                if KINDS[name].get("marks"):
                    torch_npu.npu.mstx.mark("multiplied")
                torch.npu.synchronize()
                session.step()
        if name == "stacks":
            session.export_stacks(folder / "stacks.log", "self_cpu_time_total")
