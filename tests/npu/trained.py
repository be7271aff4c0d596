"""Train a small model on the device `npu`: a program that knows nothing of captures."""

import torch
import torch_npu  # noqa: F401 - adds torch.npu

if __name__ == "__main__":
    layers = torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 64)
    model = torch.nn.Sequential(*layers).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        model(torch.zeros(32, 64, device="npu")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.npu.synchronize()
