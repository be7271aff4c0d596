"""Device times of operators, of a backend that gives torch's profiler events and nothing else.

Such a backend registers its events with `torch::profiler::impl::registerPrivateUse1Methods`. The
profiler then times each operator with two of them, but a trace that it exports has no kernel:
`opmeter trace merge` adds them from the file that is written here.

    with torch.autograd.profiler.profile(use_device="xpu2", use_kineto=False) as profiler:
        model(batch)
    profiler.export_chrome_trace("trace.json")
    write_device_times(profiler, "device_times.json")
"""

from pathlib import Path
from typing import Any

from collector.codec.canonical import readable_json
from collector.codec.errors import BadInput, file_errors


def write_device_times(profiler: Any, path: str | Path) -> int:
    """Write the device times that a profiler of torch took from events, and return their number.

    `profiler` is a torch.autograd.profiler.profile that has ended, or a torch.profiler.profile of a
    torch before 2.9. Raises BadInput if no operator has a device time."""
    found = {}
    for event in getattr(profiler, "profiler", profiler).function_events:
        took_us = sum(kernel.duration for kernel in event.kernels)
        if took_us > 0:
            found[f"{event.name}_{event.id}_{event.thread}"] = {
                "kernel_time": took_us,
                "device_memory_usage": event.device_memory_usage,
                "start_us": event.time_range.start,
                "host_dur": event.time_range.elapsed_us(),
                "thread": event.thread,
            }
    if not found:
        raise BadInput(
            "expected operators with a device time, got none: the backend has to register "
            "ProfilerStubs, and the profiler to have use_device=NAME and use_kineto=False",
            path=path,
        )
    with file_errors(Path(path), "written"):
        Path(path).write_bytes(readable_json(found))
    return len(found)
