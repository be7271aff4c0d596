"""Options that several commands have."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from math import inf
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from collector.codec.errors import BadInput
from collector.codec.numbers import percentage_of
from collector.codec.text import did_you_mean
from collector.model.measurement import CACHES
from collector.model.stack import BACKEND_SYNONYMS, PROFILED
from collector.workloads.models import bundled_decoder

CampaignArgument = Annotated[
    str, typer.Argument(help="campaign file, or the name of a bundled campaign: quickstart")
]
RootOption = Annotated[
    str | None,
    typer.Option(
        help="store: a folder, file:///path or s3://bucket/prefix  [default: ./opmeter-data]"
    ),
]
DatabaseRootOption = Annotated[
    str, typer.Option(help="store: a folder, file:///path or s3://bucket/prefix")
]
CommitOption = Annotated[
    str | None,
    typer.Option("--version", help="database version: its number, or a channel  [default: newest]"),
]
# Which of several stacks in a database every command reads, unless its option names another.
DIRECTORY_VARIABLE = "OPMETER_DIRECTORY"
DirectoryOption = Annotated[
    str | None,
    typer.Option(
        help=f"version directory  [default: that of {DIRECTORY_VARIABLE}, or the only one]",
        envvar=DIRECTORY_VARIABLE,
        show_envvar=False,
    ),
]
LayoutOption = Annotated[
    str, typer.Option(help="layout of the model over devices: tp=8,sequence_split,...")
]
# Of commands that run a serving engine.
EngineModelArgument = Annotated[
    str, typer.Argument(help="folder of a config.json, or a name of `opmeter model list`")
]
EngineReleaseOption = Annotated[str, typer.Option(help="release of the serving stack")]
EngineRanksOption = Annotated[str, typer.Option(help="ranks, one without it: tp=8,dp=2,ep=16")]
EngineGenerationOption = Annotated[str, typer.Option(help="generation of the devices: A2 or A3")]
EngineVariablesOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE: environment variable of the engine; may be given again"),
]
EngineLogsOption = Annotated[
    Path | None, typer.Option(help="new folder for the engine's output and calls")
]
ReleaseOption = Annotated[
    str | None, typer.Option(help="release of the serving stack  [default: vllm-ascend-0.18]")
]
DecodedTokensOption = Annotated[
    int | None,
    typer.Option(
        "--context", help="tokens of each decoding request in total  [default: 4096]", min=2
    ),
]
RanksGridOption = Annotated[
    str, typer.Option(help="ranks per tier, such as 48,8,2, to look up messages as well")
]
PlacedRanksOption = Annotated[str, typer.Option(help="ranks per tier, which place the messages")]
A3_RANKS = "48,8,2"
NewDeviceOption = Annotated[
    str | None, typer.Option(help="device of a stack that has no version yet: ranges alone")
]
CacheOption = Annotated[
    str | None,
    typer.Option(help="warm, cold or context  [default: as the version shows]"),
]
SingleWriterOption = Annotated[
    bool,
    typer.Option(
        "--single-writer", help="the store has no create-only writes, and no other process merges"
    ),
]
SupersedeOption = Annotated[
    bool,
    typer.Option(
        "--supersede-stack",
        help="let this stack replace another in its version directory",
    ),
]
OperatorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--operators",
        metavar="FILE",
        help="Python file with operators of your own, which is executed, or the name of an entry "
        "point in opmeter.operators; may be repeated",
    ),
]
NoCollectivesOption = Annotated[
    bool, typer.Option("--no-collectives", help="leave out the campaign's collectives")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
CampaignNameArgument = Annotated[str, typer.Argument(help="name of the campaign")]
NamespaceOption = Annotated[
    str | None,
    typer.Option(help="namespace of the workers  [default: that of this pod or context]"),
]


AgainOption = Annotated[bool, typer.Option("--again", help="measure every case again")]
RetryFailedOption = Annotated[
    bool, typer.Option("--retry-failed", help="measure the failed cases again")
]


def check_backend(
    backend: str, location: str = "--backend: ", known: Sequence[str] = PROFILED
) -> None:
    """Raise BadInput for a backend that is not one of these, which a profiler records."""
    if backend not in known:
        hint = did_you_mean(backend, known, BACKEND_SYNONYMS)
        raise BadInput(f"{location}expected one of {', '.join(known)}, got {backend!r}{hint}")


def check_cache(cache: str | None) -> None:
    """Raise BadInput for an unknown content of the cache."""
    if cache is not None and cache not in CACHES:
        raise BadInput(f"--cache: expected {' or '.join(CACHES)}, got {cache!r}")


def share_of_option(option: str, text: str, below: float = inf) -> float:
    """Return the share of an option, above 0 and written as `10%` or `0.1`. Raises BadInput for any
    other text."""
    with suppress(ValueError):
        if 0 < (share := percentage_of(text)) < below:
            return share
    least = "above 0" if below == inf else f"between 0 and {below:g}"
    raise BadInput(f"{option}: expected a share {least}, such as 10% or 0.1, got {text!r}")


# Options that take words up to the next option, as the scripts of msmodeling do:
# `--num-devices 16 2` as well as `--num-devices 16 --num-devices 2`.


def repeated(words: Iterable[str], lists: Collection[str]) -> Iterator[str]:
    """Yield the words, with the option's name before each further word of a list."""
    option, is_first = "", False
    for word in words:
        if word.startswith("-"):
            option, is_first = (word if word in lists else ""), True
        elif option and not is_first:
            yield option
        else:
            is_first = False
        yield word


# Groups of options: a command takes a dataclass of options as one parameter.

# That of `tools/perf_data_collection` of msmodeling.
_USUAL_DEVICE = "ATLAS_800_A3_752T_128G_DIE"
_StackVersion = Annotated[str, typer.Option(help="version of the stack, without --database-path")]


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """The version directory of a tree, which every command of the single-host flow requires."""

    database_path: Annotated[Path | None, typer.Option(help="version directory of a tree")] = None
    device: Annotated[
        str | None,
        typer.Option(
            help=f"device of the tree, without --database-path  [default: {_USUAL_DEVICE}]"
        ),
    ] = None
    vllm_version: Annotated[
        str, typer.Option(help="vLLM version of the stack, or a whole version name")
    ] = ""
    torch_version: _StackVersion = ""
    cann_version: _StackVersion = ""

    @property
    def folder(self) -> Path:
        """Return the folder itself, or that of a device and its versions below the current folder.
        A vLLM version that is a whole name (`vllm0.18.0_torch2.9.0_cann8.5`) requires no others."""
        from collector.database.layout import is_version_name, version_dir

        if self.database_path is not None:
            return self.database_path
        vllm, torch = self.vllm_version, self.torch_version
        if not (torch or is_version_name(vllm)):
            raise BadInput(
                "the tree is not specified: expected --database-path VERSION_DIR, or "
                "--vllm-version, --torch-version and --cann-version of --device"
            )
        device = _USUAL_DEVICE if self.device is None else self.device
        return version_dir(Path.cwd(), device, vllm, torch, self.cann_version)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The cases that a command looks up: those of a campaign's file, of a profile, of a recording,
    or of a model with the load that it serves.

    Options of a model are None or empty where they are not given."""

    campaign: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="campaign or demand that is looked up"),
    ] = None
    profile: Annotated[
        Path | None, typer.Option(help="profile to look up, instead of a campaign")
    ] = None
    recording: Annotated[
        Path | None, typer.Option(help="recording of `opmeter model record` to look up")
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="model to look up: a name of `opmeter model list`, or a config.json"),
    ] = None
    layout: LayoutOption = ""
    concurrency: Annotated[
        list[int] | None,
        typer.Option(
            help="number of requests served concurrently; may be given again  [default: 1, 8, 32]",
            min=1,
        ),
    ] = None
    input_tokens: Annotated[
        int | None, typer.Option("--input", help="tokens of a prompt  [default: 4096]", min=1)
    ] = None
    output_tokens: Annotated[
        int | None, typer.Option("--output", help="tokens of a response  [default: 512]", min=1)
    ] = None
    max_batched_tokens: Annotated[
        int | None, typer.Option(help="maximum tokens of a forward pass  [default: 8192]", min=1)
    ] = None
    graph_sizes: Annotated[
        list[int] | None,
        typer.Option(help="batch size of a captured graph; may be given again", min=1),
    ] = None
    phase: Annotated[
        str | None,
        typer.Option(
            help="phase of a disaggregated deployment: prefill or decode  [default: both]"
        ),
    ] = None
    mixed: Annotated[bool, typer.Option("--mixed", help="batch prompts and responses together")] = (
        False
    )
    predicted_tokens: Annotated[
        int | None,
        typer.Option(help="tokens predicted after each by the model's MTP layer", min=0),
    ] = None
    skew: Annotated[
        int | None,
        typer.Option(help="skew of the lengths of requests, in percent", min=0, max=99),
    ] = None
    imbalance: Annotated[
        int | None, typer.Option(help="imbalance of the experts' load, in percent", min=0, max=99)
    ] = None
    release: ReleaseOption = None
    grid: RanksGridOption = ""

    def __str__(self) -> str:
        named = self.campaign or self.profile or self.recording
        return str(named or f"{self.model} {self.layout}".strip())

    def check(self) -> None:
        """Raise BadInput for options that do not go with what is named."""
        named = (self.campaign, self.profile, self.recording, self.model)
        if sum(bool(one) for one in named) != 1:
            raise BadInput("expected one of FILE, --profile, --recording and --model")
        if not self.model and self.has_model_options:
            raise BadInput("options of a model require --model")
        if self.campaign and self.grid:
            raise BadInput("--grid: a campaign names its messages itself, in `collectives`")

    @property
    def has_model_options(self) -> bool:
        named = (self.campaign, self.profile, self.recording, self.model)
        return self != WorkloadOptions(*named, grid=self.grid)

    def model_source(self) -> dict[str, Any]:
        """Return the source of a campaign file that describes the same model and load."""
        from collector.workloads.layout import layout_of

        name, spread = self.model or "", layout_of(self.layout)
        is_folder = Path(name).is_dir() and bundled_decoder(name) is None
        serving = {
            "concurrency": list(self.concurrency or (1, 8, 32)),
            "input": self.input_tokens or 4096,
            "output": self.output_tokens or 512,
            "max_batched_tokens": self.max_batched_tokens,
            "graph_sizes": list(self.graph_sizes or ()),
            "phase": self.phase,
            "mixed": self.mixed,
            "predicted_tokens": self.predicted_tokens,
            "skew": self.skew,
            "imbalance": self.imbalance,
        }
        layout = {
            **{key: getattr(spread, key) for key in ("tp", "dp", "ep", "nz", "sequence_split")},
            "quantisation": str(spread.quantisation),
            "experts": str(spread.experts),
        }
        source = {
            "model": f"{name}/config.json" if is_folder else name,
            "layout": layout,
            "serving": {key: value for key, value in serving.items() if value},
        }
        return source | ({"release": self.release} if self.release else {})


@dataclass(frozen=True, slots=True)
class VersionOptions:
    """A version directory of a database; None for the default."""

    root: RootOption = None
    version: CommitOption = None
    directory: DirectoryOption = None


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The time of the host and the waits of messages, where they are not those of a database."""

    host_us: Annotated[
        str,
        typer.Option(
            help="time of the host in us, for a call, or before a graph whose order is assumed: 50 "
            "or LOW:HIGH  [default: as measured by `opmeter host`, else 35:140, or 3000:10000]"
        ),
    ] = ""
    wait_us: Annotated[
        str,
        typer.Option(
            help="wait of a message for other ranks in us: 20, LOW:HIGH, or captures of several "
            "ranks of one run  [default: 0:120]"
        ),
    ] = ""
    cann_us: Annotated[
        str,
        typer.Option(
            help="time of the host in CANN in us for a launch, where the rest of its time is "
            "measured: 20 or LOW:HIGH  [default: 5:60]"
        ),
    ] = ""
    host: Annotated[
        str | None,
        typer.Option(
            help="version directory with the measured time of a host  [default: the only one of "
            "the release]"
        ),
    ] = None

    def check(self) -> None:
        """Raise BadInput for a given time of the host next to where a measured one is from."""
        if self.host_us and (self.host is not None or self.cann_us):
            raise BadInput("--host-us excludes --host and --cann-us")


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """The version directory with which a profile is compared, and how."""

    root: DatabaseRootOption = "opmeter-data"
    version: CommitOption = None
    directory: DirectoryOption = None
    grid: RanksGridOption = ""
    cache: CacheOption = None
    force: Annotated[
        bool, typer.Option("--force", help="compare also with durations of a CPU or GPU")
    ] = False


def grouped(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """The command with the fields of its option groups as parameters of their own."""
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    if not any(map(is_dataclass, hints.values())):
        return command
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        hint = hints[name]
        if not (isinstance(hint, type) and is_dataclass(hint)):
            parameters.append(parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))
            continue
        groups[name] = hint
        of_group = get_type_hints(hint, include_extras=True)
        parameters += [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=of_group[field.name],
            )
            for field in fields(hint)
        ]

    @wraps(command)
    def expanded(**options: Any) -> int | None:
        made = {
            name: group(**{field.name: options.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**options, **made)

    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {one.name: one.annotation for one in parameters}
    return expanded
