"""A database of 100 version directories: merges, reads and store calls, against an empty one.

    python tests/bench/bench_database.py [TOTAL ...] [--merge MEASUREMENTS]

For each total of made measurements (default 100,000), it merges a campaign (default 10,000
measurements of one version directory), and reads what `status`, planning, `db path` and `db pull`
of one version directory read. The baseline is the same merge into an empty database. Each step is a
process of its own, so that its peak memory is its own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from collector.database import delta
from collector.database.commits import find_head
from collector.database.head_content import HeadContent, HeldShards
from collector.database.merge import CREATE, merge_plans
from collector.database.pull import pull_version
from collector.model.stack import Runtime
from collector.store.file import FileStore
from tests.bench.bench_merge import made_plan
from tests.bench.synthetic_database import write_versions
from tests.unit.collector.database.campaign_maker import STACK, MadePlan, write_campaign
from tests.unit.collector.database.wrapped_stores import CountingStore

_VERSIONS = 100
_STACK = replace(STACK, torch="2.0.50")  # of one of the made version directories


def make(root: Path, total: int, merged: int) -> None:
    """Write the database, and the campaign that will be merged into it."""
    store = FileStore(root)
    if total:
        made = (MadePlan([], stack=replace(STACK, torch=f"2.0.{n}")) for n in range(_VERSIONS))
        stacks = [replace(one, runtime=Runtime.FAKE).whole_stack for one in made]
        head = write_versions(store, "made", stacks, total // _VERSIONS)
        delta.complete_log(store, head)
    plan = made_plan(2, range(merged))
    write_campaign(store, replace(plan, stack=_STACK, campaign="later", runtime=Runtime.FAKE))


def merge(store: CountingStore, _: Path) -> None:
    result = merge_plans(store, [("later", 2)], guard=CREATE, author="bench")
    assert result.commit is not None


def status(store: CountingStore, _: Path) -> None:
    HeldShards(store, "later").at(find_head(store))


def plan(store: CountingStore, _: Path) -> None:
    content = HeadContent.of(store, find_head(store))
    content.case_results(_STACK.version_path, [f"{n:020x}" for n in range(1000)])
    content.intervals(_STACK.version_path, [f"{n:020x}" for n in range(1000)])


def path(store: CountingStore, _: Path) -> None:
    assert HeadContent.of(store, find_head(store)).versions is not None


def pull(store: CountingStore, folder: Path) -> None:
    head = find_head(store)
    assert head is not None
    pull_version(store, head, folder / "tree", directory=_STACK.version_path)


STEPS: dict[str, Callable[[CountingStore, Path], None]] = {
    "merge": merge,
    "status": status,
    "plan": plan,
    "db path": path,
    "pull": pull,
}


def run(step: str, root: Path) -> None:
    """Run one step and print its figures: the memory of a process before it is not counted."""
    store = CountingStore(FileStore(root))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here, not the parent's
    before_mib = _peak_mib()
    began_s, began = time.process_time(), time.perf_counter()
    STEPS[step](store, root.parent)
    used_s, wall_s = time.process_time() - began_s, time.perf_counter() - began
    peak_mib = _peak_mib()
    print(json.dumps([used_s, wall_s, peak_mib, peak_mib - before_mib, len(store.calls)]))


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measured(step: str, root: Path) -> list[float]:
    command = [sys.executable, __file__, "--step", step, str(root)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(totals: list[int], merged: int) -> None:
    print(f"merge of {merged:,} measurements into one of {_VERSIONS} version directories")
    baseline_s = 0.0
    for total in (0, *totals):
        folder = Path(tempfile.mkdtemp(prefix="bench-database-"))
        try:
            make(folder / "store", total, merged)
            for step in STEPS:
                used_s, wall_s, peak_mib, own_mib, calls = measured(step, folder / "store")
                if step == "merge" and not total:
                    baseline_s = used_s
                ratio = f"  ratio {used_s / baseline_s:.2f}" if step == "merge" else ""
                print(
                    f"{total:>10,}  {step:<8} {used_s:7.2f} CPU-s {wall_s:7.2f} s "
                    f"{peak_mib:6.0f} MiB (+{own_mib:.0f}) {calls:5.0f} calls{ratio}",
                    flush=True,
                )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("totals", nargs="*", type=int)
    parser.add_argument("--merge", type=int, default=10_000)
    parser.add_argument("--step", nargs=2, metavar=("STEP", "ROOT"))
    chosen = parser.parse_args()
    if chosen.step:
        run(chosen.step[0], Path(chosen.step[1]))
    else:
        main(chosen.totals or [100_000], chosen.merge)
