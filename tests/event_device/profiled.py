"""`python -m tests.event_device.profiled LIBRARY FOLDER`: a profile of a backend with events only.

The library registers the events of the backend, as an extension of PyTorch does. The output is the
trace of the host, and the device times of its operators.
"""

import ctypes
import sys
from pathlib import Path

import torch

from collector.capture import write_device_times


def main(library: str, folder: Path) -> None:
    torch.utils.rename_privateuse1_backend("eventful")
    ctypes.CDLL(library)
    ones = torch.ones(64, 64)
    with torch.autograd.profiler.profile(
        use_device="eventful", use_kineto=False, record_shapes=True, profile_memory=True
    ) as profiler:
        torch.nn.functional.linear(ones, ones).softmax(-1).to(torch.float64)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    write_device_times(profiler, folder / "device_times.json")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
