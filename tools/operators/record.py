"""Record what the stock torch_npu launches for each fixture row, and which graph its torchair makes
of those that graphs launch (all kernels, or those named): `python -m tools calls [KERNEL...]`.
Read the difference before it is committed."""

import sys
from collections.abc import Sequence

from collector.engine.wheel import NoRecordingRuntime
from tests.npu.fakecann.build import FakeCann, build_fake_cann
from tests.npu.golden import FOLDER, golden_path, golden_text, no_own_call
from tests.npu.graphed import FOLDER as GRAPHS
from tests.npu.graphed import graph_path, graph_text, graphs_of, kernels_of_graphs
from tests.npu.replayed import kernels_with_rows, replay


def main(kernels: Sequence[str]) -> int:
    """Record; return 1 if a row cannot be replayed, none of its calls is the kernel's own, or a
    named kernel has no row."""
    expected = list(kernels) or kernels_with_rows()
    failed = strange = 0
    try:
        fake = build_fake_cann()
    except NoRecordingRuntime as error:
        print(error, file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    failed += _record_graphs(fake, kernels)
    recorded = replay(fake, expected)
    without = sorted(set(kernels) - recorded.keys() - set(kernels_of_graphs()))
    for kernel in without:
        print(
            f"{kernel}: nothing to record: no rows in tests/fixtures/ops/{kernel}.csv",
            file=sys.stderr,
        )
    for kernel, rows in recorded.items():
        golden_path(kernel).write_text(golden_text(kernel, rows))
        for row in rows:
            failed += bool(row.error)
            if row.error:
                print(f"{row.case.describe()}: {row.error}", file=sys.stderr)
        if advice := no_own_call(kernel, rows):
            strange += 1
            print(advice, file=sys.stderr)
    print(f"{len(expected) - len(without)} kernels recorded in {FOLDER}, {failed} rows failed")
    return int(failed + strange + len(without) > 0)


def _record_graphs(fake: FakeCann, kernels: Sequence[str]) -> int:
    """Return the number of failed rows."""
    expected = [kernel for kernel in kernels_of_graphs() if not kernels or kernel in kernels]
    GRAPHS.mkdir(exist_ok=True)
    failed = 0
    for kernel, rows in (graphs_of(fake, expected) if expected else {}).items():
        graph_path(kernel).write_text(graph_text(rows))
        for row in rows:
            failed += bool(row.error)
            if row.error:
                print(f"{row.case.describe()}: {row.error}", file=sys.stderr)
    return failed
