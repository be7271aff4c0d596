"""Options that several verbs have."""

from typing import Annotated

import typer

from collector.errors import BadInput

CampaignArgument = Annotated[
    str, typer.Argument(help="a campaign.yaml, or the name of a bundled campaign: quickstart")
]
RootOption = Annotated[
    str | None,
    typer.Option(help="the store: a folder, file:///path or s3://bucket/prefix  [./opmeter-data]"),
]
DatabaseRootOption = Annotated[
    str, typer.Option(help="the store: a folder, file:///path or s3://bucket/prefix")
]
CommitOption = Annotated[int | None, typer.Option("--version", help="a commit's number")]
DirectoryOption = Annotated[str | None, typer.Option(help="a version directory  [the only one]")]
RanksGridOption = Annotated[
    str, typer.Option(help="48,8,2: dies of a server and so on, to look messages up as well")
]
CacheOption = Annotated[
    str | None, typer.Option(help="warm, cold or context  [as the version shows]")
]
SingleWriterOption = Annotated[
    bool,
    typer.Option(
        "--single-writer", help="nobody else merges, and the store cannot tell writers apart"
    ),
]
SupersedeOption = Annotated[
    bool,
    typer.Option("--supersede-stack", help="let this stack show where a version holds another"),
]
NoCollectivesOption = Annotated[
    bool, typer.Option("--no-collectives", help="leave out the campaign's own collectives")
]
CampaignNameArgument = Annotated[str, typer.Argument(help="the campaign's name")]
NamespaceOption = Annotated[
    str | None, typer.Option(help="the namespace of the workers  [that of this pod or context]")
]


def check_cache(cache: str | None) -> None:
    """Raise BadInput for a state of the caches that nobody measures in."""
    from collector.measurement import CACHES

    if cache is not None and cache not in CACHES:
        raise BadInput(f"--cache: expected {' or '.join(CACHES)}, got {cache!r}")
