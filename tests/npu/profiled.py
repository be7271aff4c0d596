"""Train a small model on the device `npu`: a program that profiles a part of its steps by itself,
into the folder that its argument names."""

import sys

import torch
import torch_npu

if __name__ == "__main__":
    layers = torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 64)
    model = torch.nn.Sequential(*layers).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profiler = torch_npu.profiler
    with profiler.profile(
        schedule=profiler.schedule(wait=4, warmup=1, active=2, repeat=1),
        on_trace_ready=profiler.tensorboard_trace_handler(sys.argv[1]),
        experimental_config=profiler._ExperimentalConfig(
            profiler_level=profiler.ProfilerLevel.Level1,
            aic_metrics=profiler.AiCMetrics.PipeUtilization,
        ),
        record_shapes=True,
    ) as own:
        for _ in range(14):
            model(torch.zeros(32, 64, device="npu")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.npu.synchronize()
            own.step()
