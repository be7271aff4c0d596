"""Reading a trace event by event, against decoding it whole: time and memory.

    python tests/bench/bench_trace.py [MIB]

The file is made: host and device events as torch_npu writes them. The baseline is `json.load`.
Then kernels are merged into a made trace of a host, and the baseline is the same with `json.load`
and `json.dump` of the whole.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from collector.profiles.trace_events import trace_kind, trace_rows
from collector.profiles.trace_merge import DeviceTime, merge_trace, write_merged

LIMIT_MIB = 300


def write(path: Path, mib: int) -> None:
    stack = "/usr/lib/python3/module.py(12): call;\\r\\n" * 8
    args = {"Input Dims": "1024,1024;\\r\\n", "Input type": "float", "Call stack": stack}
    host = {"ph": "X", "name": "aten::add", "pid": 1, "tid": 1, "ts": "1.5", "dur": 3, "args": args}
    task = {"Task Type": "AI_CORE", "Physic Stream Id": 2, "connection_id": 9}
    name = "aclnnAdd_AddAiCore_Add"
    device = {"ph": "X", "name": name, "pid": 7, "tid": 2, "ts": "2.5", "dur": 1.5, "args": task}
    named = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "Ascend Hardware"}}
    pair = f"{json.dumps(host)}, {json.dumps(device)}, "
    with path.open("w") as file:
        file.write("[")
        for _ in range((mib << 20) // len(pair)):
            file.write(pair)
        file.write(json.dumps(named) + "]")


def write_host(path: Path, mib: int) -> int:
    """Write a trace of a host, and return the number of its operators: every other contains the
    next one."""
    dims = [[1024, 1024], [1024, 1024], []]
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        count = 0
        while file.tell() < mib << 20:
            args = {"External id": count, "Input Dims": dims, "Call stack": "module.py(12)" * 8}
            event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
            at = {"ts": 10 * (count // 2) + count % 2, "dur": 8 - 2 * (count % 2)}
            file.write(("," if count else "") + json.dumps({**event, **at, "args": args}))
            count += 1
        file.write("]}")
    return count


def merge(mib: int) -> None:
    """Merge kernels into a trace, and print time and memory against the whole in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "trace.json", Path(folder) / "merged.json"
        count = write_host(path, mib)
        times = {("aten::mm", number): DeviceTime(7.5, 0) for number in range(count)}
        began_s = time.process_time()
        merged = merge_trace(path, times)
        with output.open("w") as file:
            write_merged(path, merged, file)
        stream_s, stream_mib = time.process_time() - began_s, peak_mib()
        assert (len(merged.kernels), merged.parents) == ((count + 1) // 2, count // 2)
        began_s = time.process_time()
        with path.open() as file:
            found = json.load(file)
        with output.open("w") as file:
            json.dump(found, file)
        whole_s, whole_mib = time.process_time() - began_s, peak_mib()
    print(f"{mib} MiB of a host, {len(merged.kernels):,} kernels merged")
    print(f"merge, event by event: {stream_s:.2f} s, {stream_mib:.0f} MiB")
    print(f"json.load, json.dump:  {whole_s:.2f} s, {whole_mib:.0f} MiB")
    print(f"ratio of time: {stream_s / whole_s:.1f}, of memory: {stream_mib / whole_mib:.2f}")


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main(mib: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace_view.json"
        write(path, mib)
        began_s = time.process_time()
        count = sum(1 for _ in trace_rows(path, trace_kind(path)))
        stream_s, stream_mib = time.process_time() - began_s, peak_mib()
        began_s = time.process_time()
        with path.open() as file:
            found = json.load(file)
        whole_s, whole_mib = time.process_time() - began_s, peak_mib()
        assert count == (len(found) - 1) // 2
    print(f"{mib} MiB, {count:,} device events")
    rate = f"{mib / stream_s:.0f} MiB/s"
    print(f"read twice, event by event: {stream_s:.2f} s ({rate}), {stream_mib:.0f} MiB")
    print(f"json.load once:             {whole_s:.2f} s, {whole_mib:.0f} MiB")
    print(f"ratio of time: {stream_s / whole_s:.1f}, of memory: {stream_mib / whole_mib:.2f}")
    return int(stream_mib > LIMIT_MIB)


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    if "merge" in sys.argv:
        merge(size)
        sys.exit()
    status = main(size)
    # In a process of its own: the peak of this one is that of the whole in memory.
    subprocess.run([sys.executable, __file__, str(size), "merge"], check=True)
    sys.exit(status)
