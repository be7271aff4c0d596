"""The recording runtime in virtual time, where each call takes the duration that it is given:
streams, events, graphs and threads against a calculation by hand."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from collector.engine.durations import DURATIONS, Duration, durations_given
from tests.npu.fakecann.build import LAUNCHES, FakeCann, environment

pytestmark = [pytest.mark.torch, pytest.mark.npu]

BEGIN = """
import ctypes, json, threading, torch, torch_npu
from opmeter_launches import computed_ns, not_of_the_host, record_named
runtime = ctypes.PyDLL("libascendcl.so")
now_ns = runtime.opmeter_fake_cann_now
now_ns.restype = ctypes.c_int64
x = torch.empty(64, 64, device="npu:0")
y, pinned = torch.empty_like(x), torch.empty(64, 64, pin_memory=True)
one, two, main = torch.npu.Stream(), torch.npu.Stream(), torch.npu.current_stream()
found = {}

def timed(name, run, synchronize=torch.npu.synchronize):
    torch.npu.synchronize()
    begin_ns = now_ns()
    run()
    synchronize()
    found[name] = (now_ns() - begin_ns) / 1000

def launch(count, stream):
    with torch.npu.stream(stream):
        for _ in range(count):
            torch.add(x, x, out=y)
"""

STREAMS = """
def fork_and_join():
    launch(2, one)  # until 200
    two.wait_stream(one)
    launch(5, two)  # until 700
    launch(3, one)  # until 500
    one.wait_stream(two)
    launch(1, one)  # until 800

def elapsed():
    begin, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    begin.record(one)
    launch(7, one)
    end.record(one)
    end.synchronize()
    found["elapsed_time"] = round(begin.elapsed_time(end) * 1000, 3)

def queries():
    event = torch.npu.Event()
    launch(4, one)
    event.record(one)
    found["query"] = [event.query(), one.query(), two.query()]
    one.synchronize()
    found["query"] += [event.query(), one.query()]

def polls():
    launch(4, one)
    event = torch.npu.Event()
    event.record(one)
    while not event.query():
        pass

def forked():
    torch.add(x, x, out=y)  # until 100
    two.wait_stream(torch.npu.current_stream())
    launch(3, two)  # until 400
    torch.mul(x, x, out=y)  # until 350
    torch.npu.current_stream().wait_stream(two)
    torch.add(x, x, out=y)  # until 500

timed("one stream", lambda: launch(10, one))
timed("two streams", lambda: (launch(10, one), launch(10, two)))
timed("fork and join", fork_and_join)
timed("wait between", lambda: (launch(3, one), one.synchronize(), launch(3, two)))
timed("one of two", lambda: (launch(3, one), launch(9, two)), one.synchronize)
def custom():
    launch(3, one)
    with torch.npu.stream(two):
        record_named("sampled", x)

timed("elapsed", elapsed)
timed("custom", custom, two.synchronize)
timed("queries", queries)
timed("polls", polls, lambda: None)
timed("read", lambda: (launch(4, main), y.cpu()), lambda: None)
timed("copy", lambda: (launch(4, main), pinned.to("npu:0", non_blocking=True)))
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    forked()
torch.npu.synchronize()
begin_ns = now_ns()
graph.replay()
found["host of a replay"] = (now_ns() - begin_ns) / 1000
timed("empty", lambda: None)
timed("graph", graph.replay)
timed("graph twice", lambda: (graph.replay(), graph.replay()))
timed("graph and its stream", lambda: (launch(1, main), graph.replay(), launch(1, main)))
timed("graph and another stream", lambda: (launch(9, two), graph.replay()))
timed("read of a graph", lambda: (graph.replay(), y.cpu()), lambda: None)

def in_event():
    graph.replay()
    event = torch.npu.Event()
    event.record()
    event.synchronize()

timed("event behind a graph", in_event, lambda: None)

def from_a_thread():
    thread = threading.Thread(target=launch, args=(3, one))
    thread.start()
    thread.join()

timed("a thread", from_a_thread)
"""


def run(fake: FakeCann, duration_of, program, count=None, **more):
    with durations_given(duration_of, count) as socket:
        env = environment(fake) | {"TASK_QUEUE_ENABLE": "0"} | more
        env |= {DURATIONS: str(socket)}
        env["PYTHONPATH"] = os.pathsep.join((str(LAUNCHES), env["PYTHONPATH"]))
        words = [sys.executable, "-c", f"{BEGIN}{program}\nprint(json.dumps(found))"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def device_alone(text: str) -> Duration:
    """Return 250 us for a product, 100 us for others and for copies, and nothing of the host."""
    return Duration(0, 250_000 if "aclnnMul" in text else 100_000)


def test_streams_events_and_graphs_take_the_time_of_a_calculation_by_hand(fake: FakeCann):
    found = run(fake, device_alone, STREAMS)
    fills = (found["graph"] - 500) / 100  # launches with which torch sets the seed of a graph
    assert fills in (0, 1, 2)
    graph = found["graph"]
    assert found == {
        "one stream": 1000,
        "two streams": 1000,
        "fork and join": 800,
        "wait between": 600,
        "one of two": 300,
        "elapsed_time": 700,
        "elapsed": 700,
        "custom": 100,
        "query": [False, False, True, True, True],
        "queries": 400,
        "polls": 400,
        "read": 500,
        "copy": 500,
        "host of a replay": 0,
        "empty": 0,
        "graph": graph,
        "graph twice": 2 * graph,
        "graph and its stream": graph + 200,
        "graph and another stream": 900,
        "read of a graph": graph + 100,
        "event behind a graph": graph,
        "a thread": 300,
    }
    assert run(fake, device_alone, STREAMS) == found


UPDATED = """
graph, updates, ready = torch.npu.NPUGraph(), torch.npu.Stream(), ctypes.c_void_p()
EXTERNAL = 32  # as torch_npu 2.9 makes an ExternalEvent; this one waits for memory instead
runtime.aclrtCreateEventExWithFlag(ctypes.byref(ready), EXTERNAL)
with torch.npu.graph(graph):
    stream = torch.npu.current_stream()
    runtime.aclrtStreamWaitEvent(ctypes.c_void_p(stream.npu_stream), ready)
    torch.npu.graph_task_group_begin(stream)
    torch.add(x, x, out=y)
    group = torch.npu.graph_task_group_end(stream)

def updated():
    graph.replay()
    with torch.npu.stream(updates):
        torch.npu.graph_task_update_begin(updates, group)
        torch.mul(x, x, out=y)
        torch.npu.graph_task_update_end(updates)
        runtime.aclrtRecordEvent(ready, ctypes.c_void_p(updates.npu_stream))

timed("updated", updated)
timed("again", updated)
"""


def test_a_graph_waits_for_the_update_of_its_tasks(fake: FakeCann):
    def duration_of(text: str) -> Duration:
        return Duration(1_000_000, 250_000) if "aclnnMul" in text else Duration(0, 100_000)

    found = run(fake, duration_of, UPDATED)
    assert found == {"updated": 1250, "again": 1250}


COUNTED = """
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    torch.mul(x, x, out=y)
launch(3, one)
runtime.opmeter_fake_cann_begin_run(0)
launch(5, one)
graph.replay()
graph.replay()
torch.npu.synchronize()
runtime.opmeter_fake_cann_end_run()
launch(2, one)
"""


def test_calls_of_a_run_are_counted(fake: FakeCann):
    times: Counter[str] = Counter()
    run(fake, device_alone, COUNTED, lambda text, count: times.update({text: count}))
    found = {text.partition("(")[0]: count for text, count in times.items()}
    assert (found["ACLNN aclnnAdd"], found["ACLNN aclnnMul"]) == (5, 2)


def of_host_and_device(host_ns: int, device_ns: int):
    def duration_of(text: str) -> Duration:
        return Duration(host_ns if text.startswith("ACLNN") else 0, device_ns)

    return duration_of


LAUNCHES_ALONE = """
launch(3, one)
timed("ten", lambda: launch(10, one))
"""


@pytest.mark.parametrize("task_queue", ["0", "1"])
def test_the_longer_one_of_host_and_device_bounds_launches(fake: FakeCann, task_queue):
    queue = {"TASK_QUEUE_ENABLE": task_queue}
    by_device = run(fake, of_host_and_device(20_000, 100_000), LAUNCHES_ALONE, **queue)
    assert by_device == {"ten": 1020}
    by_host = run(fake, of_host_and_device(20_000, 5_000), LAUNCHES_ALONE, **queue)
    assert by_host == {"ten": 205}


COMPUTED = """
def computed():
    with not_of_the_host:
        return computed_ns() / 1000

launch(3, one)
torch.npu.synchronize()
begin, begin_ns = computed(), now_ns()
launch(100, one)
torch.npu.synchronize()
end, end_ns = computed(), now_ns()
found["computed"], found["virtual"] = end - begin, (end_ns - begin_ns) / 1000
"""


def test_what_a_thread_computes_can_be_its_time(fake: FakeCann):
    found = run(fake, of_host_and_device(0, 0), COMPUTED, FAKE_NPU_ORDER="1")
    between = abs(found["virtual"] - found["computed"])  # of the readings, what Python does
    assert found["computed"] > 0 and between < found["computed"] / 2, found
    more = run(fake, of_host_and_device(1_000_000, 0), COMPUTED, FAKE_NPU_ORDER="1")
    assert more["virtual"] - more["computed"] >= 100_000 - more["computed"] / 2, more


def test_a_process_ends_where_no_duration_is_known(fake: FakeCann):
    def unknown(text: str) -> Duration:
        raise LookupError(text)

    with pytest.raises(LookupError, match="ACLNN|HOST"):
        run(fake, unknown, LAUNCHES_ALONE)
