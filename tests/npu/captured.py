"""Capture a small model on the device `npu` twice: analysed, and collected only."""

import sys
from pathlib import Path

import torch

from collector.capture import capture

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    import torch_npu  # noqa: F401 - adds torch.npu

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU()).to(torch.bfloat16).npu()
    for name, options in (("analysed", {}), ("raw", {"level": "Level2", "analyse": False})):
        with capture(folder / name, steps=3, **options) as session:
            for _ in range(5):
                model(torch.zeros(32, 64, dtype=torch.bfloat16, device="npu")) * 2
                torch.npu.synchronize()
                session.step()
