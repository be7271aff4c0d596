"""Make graphs of fixture rows with the stock torchair on the fake NPU, and record the ops of each:
`python -m tests.npu.graph_rows OUT ROW...`.

The graph engine is part of CANN and not available here: a graph is made and never compiled. A row
is `{kernel}:{number}` of those that graphs launch, or `static`, a sum whose kernel is built for its
shape; OUT gets a JSON line for each.
"""

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from collector.codec.errors import OpmeterError
from collector.model.case import shape_text
from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_of_graphs
from tests.npu.replay_rows import Host, open_host

_INNER = frozenset({"Data", "Const", "NetOutput"})


class _Made(Exception):
    """Raised when a graph is made, instead of running the engine."""


class _Graphs:
    """Replaces the call with which torchair passes the graph to the engine."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def take_graph(self, graph: Any, *args: Any, **kwargs: Any) -> None:
        self.reported = [line for op in graph.graph.op if (line := _line(op))]
        raise _Made

    def take_capture(self, graph: Any, *args: Any, **kwargs: Any) -> None:
        config = graph.config
        kernels = config.experimental_config.aclgraph
        is_static = kernels._aclnn_static_shape_kernel.value
        folder = Path(kernels._aclnn_static_shape_kernel_build_dir.value)
        self.reported = [f"{config.mode.value}, static kernels {is_static}, {folder.is_dir()}"]
        raise _Made


def main(out: Path, rows: list[str]) -> None:
    host, graphs = open_host(Path(os.environ["FAKE_CANN_LOG"])), _Graphs()
    _cut_off_the_engine(graphs)
    with out.open("a") as file:
        for row in rows:
            file.write(json.dumps({"row": row, **_graph(host, graphs, row)}) + "\n")
            file.flush()
    sys.stdout.flush()
    os._exit(0)  # the exit of the fake is irrelevant, and takes long


def _cut_off_the_engine(graphs: _Graphs) -> None:
    from torchair._acl_concrete_graph.fx2acl_converter import AclConcreteGraph
    from torchair._ge_concrete_graph import fx2ge_converter

    fx2ge_converter.initialize_graph_engine = lambda options=None: None
    fx2ge_converter.GeConcreteGraph.optimize_graph_without_runtime = lambda self, *args, **kwargs: (
        graphs.take_graph(self)
    )
    AclConcreteGraph.optimize_graph_without_runtime = lambda self, *args, **kwargs: (
        graphs.take_capture(self)
    )


def _graph(host: Host, graphs: _Graphs, row: str) -> dict[str, Any]:
    """Return the ops of a row's graph, or the error."""
    graphs.reported = []
    try:
        _launch_static(host) if row == "static" else _launch(host, row)
    except OpmeterError as error:
        return {"error": str(error)}
    except Exception as error:  # any error of torchair about the call is the result
        if not graphs.reported:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
    return {"error": "", "ops": graphs.reported}


def _launch(host: Host, row: str) -> None:
    from collector.replay.calls import in_graph, resolve
    from collector.replay.tensors import CaseTensors

    kernel, _, number = row.partition(":")
    op, case = find_operator(kernel), rows_of_graphs(kernel)[int(number)].case
    assert op is not None
    op.check(case, "npu")
    make = CaseTensors("npu:0", 7, frozenset(), host.cast)
    call, graph = op.npu_call(case, make), op.graph_of(case)
    assert graph is not None
    api = resolve(op.call, {"torch": host.torch, "torch_npu": host.torch_npu})
    is_static = case.op_state == "static" or graph.is_static
    run = in_graph(partial(graph.run, api), is_dynamic=not is_static)
    run(*call.args, **call.kwargs)


def _launch_static(host: Host) -> None:
    from collector.replay.calls import with_static_kernel

    x = host.torch.zeros(4, 8, device="npu:0")
    with_static_kernel(host.torch.add)(x, x)


def _line(op: Any) -> str:
    """Return an op with its inputs and attributes; empty if it is not a kernel."""
    if op.type in _INNER:
        return ""
    inputs = ["-" if not name else _input(op, i) for i, name in enumerate(op.input)]
    attributes = sorted(filter(None, (_attribute(name, op.attr[name]) for name in op.attr)))
    return f"{op.type}({'; '.join(inputs)}) {' '.join(attributes)}".strip()


def _input(op: Any, index: int) -> str:
    """Return `Data 2,3` with the shape if torchair recorded it, else the op that makes it."""
    maker = re.sub(r"(_\d+)+$", "", op.input[index].partition(":")[0])
    desc = op.input_desc[index]
    return f"{maker} {shape_text(tuple(desc.shape.dim))}".strip()


def _attribute(name: str, value: Any) -> str:
    kind = value.WhichOneof("value")
    if name.startswith("_") or kind in (None, "func", "td", "t"):
        return ""
    reported = getattr(value, kind)
    if kind == "list":
        reported = list(reported.i or reported.s or reported.f or reported.b)
    if isinstance(reported, bytes):
        reported = reported.decode()
    if isinstance(reported, float):
        reported = round(reported, 6)
    return f"{name}={reported}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
