"""Options that several verbs have."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from collector.codec.errors import BadInput

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
    from collector.model.measurement import CACHES

    if cache is not None and cache not in CACHES:
        raise BadInput(f"--cache: expected {' or '.join(CACHES)}, got {cache!r}")


# Where a tree's version lies: what every verb of the single-host flow is told first.

DatabasePathOption = Annotated[Path | None, typer.Option(help="the version directory of a tree")]
DeviceOption = Annotated[str | None, typer.Option(help="instead: the device ...")]
VllmOption = Annotated[str, typer.Option(help="... and the versions of its stack")]
VersionOption = Annotated[str, typer.Option()]


def version_folder(
    database_path: Path | None, device: str | None, versions: tuple[str, str, str]
) -> Path:
    """The folder itself, or that of a device and its versions (vllm, torch, CANN) below this one.

    A vllm version that is a whole name (`vllm0.18.0_torch2.9.0_cann8.5`) needs no others.
    """
    from collector.database.layout import is_version_name, version_dir

    if database_path is not None:
        return database_path
    vllm, torch, cann = versions
    if not device or not (torch or is_version_name(vllm)):
        raise BadInput(
            "the tree is not specified: expected --database-path VERSION_DIR, or --device with "
            "--vllm-version, "
            "--torch-version and --cann-version"
        )
    return version_dir(Path.cwd(), device, vllm, torch, cann)


# Options that take words up to the next option, as the first design's scripts did:
# `--num-devices 16 2` beside `--num-devices 16 --num-devices 2`.


def repeated(words: Iterable[str], lists: Collection[str]) -> Iterator[str]:
    """The same words, with each further word of a list under its option's name again."""
    option, is_first = "", False
    for word in words:
        if word.startswith("-"):
            option, is_first = (word if word in lists else ""), True
        elif option and not is_first:
            yield option
        else:
            is_first = False
        yield word


# Options that name what is looked up in the place of a campaign: a profile, or a model with its
# serving.

ProfileOption = Annotated[Path | None, typer.Option(help="instead of a campaign: a profile")]
ModelOption = Annotated[
    str | None, typer.Option(help="or a name of `opmeter model list`, or a config.json")
]
LayoutOption = Annotated[str, typer.Option(help="of the model: tp=8,sequence_split,...")]
ConcurrencyOption = Annotated[
    list[int] | None, typer.Option(help="requests that it serves at once  [1, 8, 32]", min=1)
]
InputOption = Annotated[
    int | None, typer.Option("--input", help="tokens of a prompt  [4096]", min=1)
]
OutputOption = Annotated[
    int | None, typer.Option("--output", help="tokens of an answer  [512]", min=1)
]
MaxBatchedTokensOption = Annotated[int | None, typer.Option(help="in one pass  [8192]", min=1)]
GraphSizesOption = Annotated[
    list[int] | None, typer.Option(help="a decode is padded to the next of them", min=1)
]
PhaseOption = Annotated[
    str | None, typer.Option(help="prefill or decode, of a deployment of one phase")
]
MixedOption = Annotated[
    bool, typer.Option("--mixed", help="prompts pass beside the answers of others")
]
PredictedTokensOption = Annotated[
    int | None, typer.Option(help="after each, by the model's layer for it (MTP)", min=0)
]
SkewOption = Annotated[
    int | None, typer.Option(help="percent: answers have more and fewer keys", min=0, max=99)
]
ImbalanceOption = Annotated[
    int | None, typer.Option(help="percent: experts have more and fewer rows", min=0, max=99)
]
ReleaseOption = Annotated[str | None, typer.Option(help="the serving stack  [vllm-ascend-0.18]")]
