"""Print when each Add of a window of the stock profiler began, and how long it took, in ns."""

import torch

from collector.comm.rank_device import open_rank_device

if __name__ == "__main__":
    device = open_rank_device("npu", 0)
    x = torch.ones(4, 8, device=device.name)
    for span in device.kernels("Add", lambda: [(x + x).neg() for _ in range(3)]):
        print(span.start_ns, span.duration_ns)
