"""Reading a trace event by event, against decoding it whole: time and memory.

    python tests/bench/bench_trace.py [MIB]

The file is made: host and device events as torch_npu writes them. The baseline is `json.load`.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from collector.profiles.trace_events import kind_of, rows_of

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


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main(mib: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace_view.json"
        write(path, mib)
        began_s = time.process_time()
        count = sum(1 for _ in rows_of(path, kind_of(path)))
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
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 64))
