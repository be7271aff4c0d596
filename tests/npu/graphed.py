"""The graphs that the stock torchair makes of fixture rows launched by graphs:
`graph_calls/{Kernel}.txt`.

Read the ops next to the rows: GE names an op before it knows its sizes, and launches it by the name
of the kernel that fits them.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.engine import wheel
from collector.model.case import Case
from collector.ops.registry import all_ops
from tests.fixtures.op_rows import rows_of_graphs
from tests.npu.fakecann.build import FakeCann, environment
from tests.npu.golden import headline

FOLDER = Path(__file__).parent / "graph_calls"
_ROOT = Path(__file__).parents[2]
_LIMIT_S = 300
# Ops whose sizes are constants become kernels with built-in sizes (ops-math of CANN: SplitVD,
# ConcatV2D, which decode steps of torchair show; CANN's guide of fusions: ReduceSumD).
KERNELS = {"SplitV": "SplitVD", "ConcatV2": "ConcatV2D", "ReduceSum": "ReduceSumD"}
# Ops that the engine removes or fuses with a neighbour: copies of the results of a graph,
# transposed operands, casts to the dtype that a tensor already has.
REMOVED = frozenset({"Identity", "Transpose", "Cast"})


@dataclass(frozen=True, slots=True)
class Graphed:
    """The result of one row: the ops of its graph, in order, or the error."""

    case: Case
    error: str
    ops: tuple[str, ...]

    @property
    def kernels(self) -> list[str]:
        """Return the kernel types that its ops are known to become, without the removed ones."""
        types = [op.partition("(")[0] for op in self.ops]
        return [KERNELS.get(name, name) for name in types if name not in REMOVED]


def kernels_of_graphs() -> list[str]:
    """Return the kernel types with rows that graphs launch."""
    return [op.kernel for op in all_ops() if rows_of_graphs(op.kernel)]


def graphs_of(fake: FakeCann, kernels: Iterable[str]) -> dict[str, list[Graphed]]:
    """Return the graphs of every such row of these kernels, made by one process."""
    return graphs_in(answers(fake, graph_rows(kernels)))


def graph_rows(kernels: Iterable[str]) -> list[str]:
    """Return every row of these kernels that a graph launches, as `answers` takes them."""
    return [f"{k}:{i}" for k in kernels for i in range(len(rows_of_graphs(k)))]


def graphs_in(results: Iterable[dict[str, Any]]) -> dict[str, list[Graphed]]:
    """Return the graphs in these results, by kernel."""
    found: dict[str, list[Graphed]] = {}
    for answer in results:
        kernel, _, number = answer["row"].partition(":")
        case = rows_of_graphs(kernel)[int(number)].case
        ops = tuple(answer.get("ops", ()))
        found.setdefault(kernel, []).append(Graphed(case, answer["error"], ops))
    return found


def answers(fake: FakeCann, rows: Sequence[str]) -> list[dict[str, Any]]:
    """Return the output of `tests.npu.graph_rows` for each of these rows."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out"), Path(folder, "log")
        env = environment(fake, log=log)
        env["PYTHONPATH"] = os.pathsep.join((str(wheel.protobuf()), env["PYTHONPATH"]))
        done = subprocess.run(
            [sys.executable, "-m", "tests.npu.graph_rows", str(out), *rows],
            cwd=_ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        lines = out.read_text().splitlines() if out.exists() else []
    if len(lines) != len(rows):
        raise RuntimeError(f"{len(lines)} of {len(rows)} rows, then: {done.stderr[-2000:]}")
    return [json.loads(line) for line in lines]


def graph_path(kernel: str) -> Path:
    return FOLDER / f"{kernel}.txt"


def graph_text(rows: Iterable[Graphed]) -> str:
    """Return the contents of the file of a kernel for these rows."""
    return "\n".join(
        "\n".join((headline(row.case), *(f"  {op}" for op in row.ops), "")) for row in rows
    )
