"""The verbs that look at the database: `opmeter db ...` and `opmeter pull`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Look at the versions of the database.", no_args_is_help=True, rich_markup_mode=None
)

RootOption = Annotated[
    str, typer.Option(help="the store: a folder, file:///path or s3://bucket/prefix")
]
VersionOption = Annotated[int | None, typer.Option("--version", help="a commit's number")]


@app.command()
def log(root: RootOption = "opmeter-data") -> None:
    """List the versions, newest first."""
    from jobs.verbs.database import log_verb

    log_verb(root)


@app.command()
def path(root: RootOption = "opmeter-data", version: VersionOption = None) -> None:
    """Print where a version lies, as a prefix of the store."""
    from jobs.verbs.database import path_verb

    path_verb(root, version)


@app.command()
def verify(root: RootOption = "opmeter-data", version: VersionOption = None) -> None:
    """Check every hash and every file of one version, or of all of them."""
    from jobs.verbs.database import verify_verb

    raise typer.Exit(verify_verb(root, version))


@app.command()
def diff(
    before: Annotated[int, typer.Argument(help="a version")],
    after: Annotated[int, typer.Argument(help="a later version")],
    root: RootOption = "opmeter-data",
) -> None:
    """List the cases that came, went or changed their duration."""
    from jobs.verbs.database import diff_verb

    diff_verb(root, before, after)


def pull(
    target: Annotated[Path, typer.Argument(help="the folder to write")],
    root: RootOption = "opmeter-data",
    version: VersionOption = None,
    prune_empty_duration_rows: Annotated[
        bool,
        typer.Option("--prune-empty-duration-rows", help="leave out rows without a duration"),
    ] = False,
    cache: Annotated[str | None, typer.Option(help="warm or cold  [as the version shows]")] = None,
) -> None:
    """Write a version of the database as a tree of CSVs, every hash checked."""
    from jobs.verbs.database import pull_verb

    pull_verb(root, version, target, prune_empty_duration_rows, cache)
