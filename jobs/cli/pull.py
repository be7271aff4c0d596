"""`opmeter pull`."""

from pathlib import Path
from typing import Annotated

import typer

from collector.counting import counted
from jobs.cli.db import chosen_commit
from jobs.cli.options import CacheOption, CommitOption, DatabaseRootOption, check_cache
from jobs.cli.terminal import say


def pull_verb(
    target: Annotated[Path, typer.Argument(help="the folder to write")],
    *,
    root: DatabaseRootOption = "opmeter-data",
    version: CommitOption = None,
    prune_empty_duration_rows: Annotated[
        bool,
        typer.Option("--prune-empty-duration-rows", help="leave out rows without a duration"),
    ] = False,
    cache: CacheOption = None,
) -> None:
    """Write a version of the database as a tree of CSVs, every hash checked."""
    from collector.database.pull import pull_version
    from jobs.cli.opening import open_root

    check_cache(cache)
    store = open_root(root)
    commit = chosen_commit(store, root, version)
    pulled = pull_version(store, commit, target, prune_empty=prune_empty_duration_rows, cache=cache)
    written = f"{counted(pulled.files, 'file')}, {counted(pulled.rows, 'row')}"
    say(f"version {commit.number}: {written} in {target}")
    if commit.runtime != "real":
        warning = f"its numbers are of a {commit.runtime} runtime, and no device's"
        say(f"warning: {warning}", err=True)
    for path in pulled.without_mapping:
        say(f"warning: {path} has no op_mapping.yaml; bring your own", err=True)
