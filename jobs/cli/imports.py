"""`opmeter db import`: durations of other tools into a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted
from jobs.cli import options
from jobs.cli.opening import choose_guard, open_root
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.complete_results import CompleteResults
    from collector.database.imported import Import
    from collector.database.merge import MergeResult


def import_command(
    tree: Annotated[
        Path,
        typer.Argument(
            help="tree in msmodeling's layout, one of its version directories, or with "
            "--directory a folder of CSVs"
        ),
    ],
    *,
    root: options.RootOption = None,
    directory: Annotated[
        str | None,
        typer.Option(
            help="version directory to import, {device}/vllm_ascend/{version}; for a folder of "
            "CSVs, the one that they belong to  [default: all]"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would be imported; write nothing")
    ] = False,
    single_writer: options.SingleWriterOption = False,
) -> int:
    """Import the durations of other tools, as a new version of the database.

    An imported duration has no certificate, and its interval is the noise of such numbers. Queries
    name its channel `imported`, and every measurement of the same case is shown instead. To import
    the same tree again changes nothing. The tree is only read. The exit code is 1 if something
    that was imported before is damaged.

    \b
    Examples:
      opmeter db import tensor_cast/performance_model/profiling_database/data
      opmeter db import rows --directory CPU_x/vllm_ascend/vllm0_torch2.9_cann0 --root s3://perf/db
    """
    from collector.database.imported import tree_imports

    if not tree.is_dir():
        raise BadInput("expected the folder of a tree, got none", path=tree)
    found = list(tree_imports(tree, directory))  # all of it, before anything is written
    for one in found:
        say(_line(one))
    if dry_run:
        return 0
    return _published(publish_results(found, root, single_writer=single_writer))


def publish_results(
    found: Sequence[CompleteResults], root: str | None, *, single_writer: bool, node: str = ""
) -> MergeResult:
    """Store complete results as a new version of the database; `node` is the host they are from."""
    from collector.database.commits import find_head
    from collector.database.merge import merge_plans
    from collector.worker.complete_results import store_results
    from jobs.planning.lifecycle import current_author

    store = open_root(root, single_writer=single_writer)
    guard = choose_guard(store, single_writer=single_writer)
    head = find_head(store)
    plans = [store_results(store, one, head.number if head else 0, node) for one in found]
    return merge_plans(store, plans, guard=guard, author=current_author())


def _line(one: Import) -> str:
    empty = f"; {one.empty:,} without a duration" if one.empty else ""
    twice = f"; {counted(one.repeated, 'row')} of an earlier case" if one.repeated else ""
    path = one.stack.version_path
    return f"import      {path}: {counted(len(one.rows), 'duration')}{empty}{twice}"


def _published(result: MergeResult) -> int:
    for damage in result.damaged:
        say(str(damage))
    if result.commit is not None:
        say(f"version {result.commit.number}: {result.added_measurements:,} imported")
    elif result.head is not None:
        say(f"nothing new: version {result.head.number} is the newest")
    return int(bool(result.damaged))
