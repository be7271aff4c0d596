"""`opmeter model record`, and the display of a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, percent
from collector.workloads.serving import Phase
from jobs.cli import options
from jobs.cli.terminal import print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from collector.engine.model_folder import ModelFolder
    from collector.engine.recorded_calls import PassTokens
    from collector.report.recorded_share import RecordedShare
    from collector.workloads.layout import Layout
    from collector.workloads.recorded_step import Prompts, RecordedPass, Recording

_Choice = TypeVar("_Choice", bound=StrEnum)
RECORDING_SUFFIX = ".json.gz"
_MIXED = "mixed"
_MISSING_COLUMNS = ("share", "phase", "kernel", "times", "reason", "example")
_COLUMNS = ("pass", "kernel", "times", "where", "graph", "input shapes")


def record_command(
    model: options.EngineModelArgument,
    *,
    output: Annotated[Path, typer.Option(help="file, replaced if it exists: NAME.json.gz")],
    release: options.EngineReleaseOption = "vllm-ascend-0.18",
    layout: options.EngineRanksOption = "",
    generation: options.EngineGenerationOption = "A3",
    phase: Annotated[
        str, typer.Option(help="phases: prefill, decode, mixed (both in one pass)")
    ] = "prefill,decode",
    tokens: Annotated[int, typer.Option(help="new tokens of all prompts", min=1)] = 4096,
    prompts: Annotated[int, typer.Option(help="number of prompts", min=1)] = 1,
    earlier: Annotated[
        int, typer.Option(help="tokens of each prompt that earlier passes processed", min=0)
    ] = 0,
    requests: Annotated[int, typer.Option(help="number of decoding requests", min=1)] = 16,
    keys: Annotated[
        int, typer.Option("--context", help="tokens of each decoding request in total", min=2)
    ] = 4096,
    speculative: Annotated[
        int, typer.Option(help="tokens that the model's MTP layers draft in each pass", min=0)
    ] = 0,
    graph: Annotated[
        str, typer.Option(help="captured graphs, eager without it: full-decode or piecewise")
    ] = "",
    quantization: Annotated[
        str,
        typer.Option(
            help="weights: w8a8, w8a8c8 or w4a8 as ModelSlim makes them, or bf16; without it, as "
            "the config.json describes them"
        ),
    ] = "",
    env: options.EngineVariablesOption = None,
    engine: Annotated[str, typer.Option(help="further options of vllm.LLM, as JSON")] = "",
    sampling: Annotated[str, typer.Option(help="options of vllm.SamplingParams, as JSON")] = "",
    logs: options.EngineLogsOption = None,
) -> None:
    """Record what a model launches, from the serving software itself, without an NPU.

    vLLM and vLLM-Ascend run the whole model with dummy weights on a runtime that records every
    call, in order. It takes a minute or two, with graphs up to five, on x86-64 with gcc; the first
    recording of a release downloads its wheels.

    \b
    Examples:
      opmeter model record qwen3-32b --output qwen3-32b.json.gz
      opmeter model record qwen3-32b --layout tp=16 --graph full-decode \\
        --env VLLM_ASCEND_ENABLE_NZ=2 --output qwen3-32b-tp16.json.gz
    """
    import logging

    from collector.codec.errors import file_errors
    from collector.codec.files import check_writable
    from collector.codec.scratch import scratch_folder
    from collector.engine.engine_process import (
        EngineSettings,
        GraphMode,
        check_settings,
        read_environment,
        read_options,
        record_model,
    )
    from collector.engine.model_folder import find_model
    from collector.store.atomic import write_through
    from collector.workloads.recorded_step import Prompts, write_recording

    _check_output(output)
    check_engine(generation, logs)
    each = tokens // prompts
    if tokens % prompts:
        raise BadInput(f"--tokens ({tokens}) must be divisible by --prompts ({prompts})")
    if earlier % each:
        raise BadInput(f"--earlier ({earlier}) must be divisible by a prompt's new tokens ({each})")
    ranks = engine_ranks(layout)
    settings = EngineSettings(
        release=release,
        passes=_passes(
            phase,
            Prompts(prompts, each, each + earlier),
            requests,
            1 + speculative,
            keys,
        ),
        device=generation,
        tp=ranks.tp,
        dp=ranks.dp,
        ep=ranks.ep,
        speculative=speculative,
        graph=_member("--graph", GraphMode, graph),
        environment=read_environment(env or ()),
        options=read_options("--engine", engine),
        sampling=read_options("--sampling", sampling),
    )
    folder = quantised_model(find_model(model), quantization)
    check_settings(settings)
    logging.getLogger("collector.engine").setLevel(logging.INFO)
    check_writable(output.absolute().parent)
    with scratch_folder("record") as scratch:
        found = record_model(folder, settings, (logs or scratch).absolute())
    with file_errors(output, "written"):
        write_through(output, write_recording(found))
    say(f"wrote {output}")
    for one in found.passes:
        launched = sum(times for _, times in one.launched())
        say(f"{one}: {launched:,} launches of {len(one.launches):,} cases{_mode(one)}")
    if settings.graph is None:
        say("all passes are eager; servers decode in graphs: --graph full-decode")


def derive_command(
    recording: Annotated[Path, typer.Argument(help="file of `opmeter model record`")],
    *,
    output: Annotated[Path, typer.Option(help="file, replaced if it exists: NAME.json.gz")],
) -> None:
    """Make the kernels and tensors of a recording again, from its recorded calls.

    A later opmeter may know more about the kernels that a call launches. No engine is needed.

    \b
    Example:
      opmeter model derive qwen3-32b.json.gz --output qwen3-32b.json.gz
    """
    from dataclasses import replace

    from collector.codec.errors import file_errors
    from collector.engine.recorded_calls import derived_again
    from collector.store.atomic import write_through
    from collector.workloads.recorded_step import read_recording, write_recording

    _check_output(output)
    found = read_recording(recording)
    again = replace(found, passes=tuple(map(derived_again, found.passes)))
    with file_errors(output, "written"):
        write_through(output, write_recording(again))
    changed = sum(one != other for one, other in zip(found.passes, again.passes, strict=True))
    say(f"wrote {output}: {changed} of {counted(len(found.passes), 'pass', 'passes')} changed")


def check_engine(generation: str, logs: Path | None) -> None:
    """Raise BadInput for a generation that no engine runs for, and for a folder that exists."""
    from collector.engine.engine_process import DEVICES

    if logs is not None and logs.exists():
        raise BadInput(f"--logs: expected a new folder, got {logs}, which exists")
    if generation not in DEVICES:
        raise BadInput(f"--generation: expected one of {', '.join(DEVICES)}, got {generation!r}")


def engine_ranks(layout: str) -> Layout:
    """Return the layout of an engine's ranks. Raises BadInput for other settings of a layout."""
    from collector.workloads.layout import Layout, layout_of

    ranks = layout_of(layout)
    if ranks != Layout(tp=ranks.tp, dp=ranks.dp, ep=ranks.ep):
        raise BadInput(
            f"--layout: expected tp, dp and ep, got {layout}; settings of the software are passed "
            "with --env"
        )
    return ranks


def _check_output(output: Path) -> None:
    if not output.name.endswith(RECORDING_SUFFIX):
        raise BadInput(f"--output: expected a name that ends with {RECORDING_SUFFIX}, got {output}")
    if not output.absolute().parent.is_dir():
        raise BadInput(f"--output: no folder {output.absolute().parent}")


def _mode(one: RecordedPass) -> str:
    """Return how many launches of a pass are in graphs."""
    inside = sum(launch.in_graph for launch in one.launches)
    return f", {inside:,} of them in graphs" if inside else ""


def quantised_model(folder: ModelFolder, scheme: str) -> ModelFolder:
    """Return a model with weights as `--quantization` says. Raises BadInput for another text."""
    from collector.engine.quantised import WeightScheme

    found = _member("--quantization", WeightScheme, scheme)
    return folder.quantised(found) if found else folder


def _member(option: str, choices: type[_Choice], text: str) -> _Choice | None:
    """Return a choice, or nothing without a text. Raises BadInput for another text."""
    if text and text not in tuple(choices):
        raise BadInput(f"{option}: expected {' or '.join(choices)}, got {text!r}")
    return choices(text) if text else None


def _passes(
    phase: str, prompts: Prompts, requests: int, queries: int, keys: int
) -> tuple[PassTokens, ...]:
    from collector.engine.recorded_calls import PassTokens

    known = {
        Phase.PREFILL: PassTokens("prefill", prompts.requests, prompts.queries, prompts.keys),
        Phase.DECODE: PassTokens("decode", requests, queries, keys),
        _MIXED: PassTokens(_MIXED, requests, queries, keys, prompts),
    }
    phases = phase.split(",")
    if not set(phases) <= set(known):
        raise BadInput(f"--phase: expected {', '.join(known)}, got {phase!r}")
    return tuple(known[one] for one in dict.fromkeys(phases))


def show_recording(path: Path, *, only_missing: bool, as_json: bool) -> None:
    """Print the launches of a recording, in the whole model."""
    from collector.workloads.call_order import CallKind
    from collector.workloads.recorded_step import read_recording, recording_value

    found = read_recording(path)
    if only_missing:
        _show_missing(found, as_json=as_json)
        return
    if as_json:
        print_json(recording_value(found))
        return
    ranks = ", ".join(f"{name}={count}" for name, count in found.layout.items())
    for one in found.passes:
        title = f"{found.model}, {ranks}: {one}, as {found.release} launches it on {found.device}"
        places = one.places()
        rows = [
            (
                *(str(one), launch.kernel, *_counts(places[CallKind.LAUNCH, at])),
                *(_graph(launch.in_graph), launch.cells.get("Input Shapes", "").strip('"')),
            )
            for at, launch in enumerate(one.launches)
        ]
        rows += [
            (
                *(str(one), message.operation, *_counts(places[CallKind.MESSAGE, at])),
                _graph(message.in_graph),
                f"{message.message_bytes} bytes over {message.group_size} ranks",
            )
            for at, message in enumerate(one.messages)
        ]
        print_table(_COLUMNS, rows, title=title)


def _show_missing(recording: Recording, *, as_json: bool) -> None:
    from jobs.planning.not_measured import not_measured

    found = not_measured(recording)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    rows = [
        (
            percent(one.share, 2),
            one.phase,
            one.kernel,
            str(one.launches),
            one.why,
            one.example.call,
        )
        for one in found
    ]
    title = f"{recording.model}: kernels that no operator measures, by share of the roofline time"
    print_table(_MISSING_COLUMNS, rows, title=title)


_LISTED = 10


def compare_with_recording(profile: Path, recording: Path, *, as_json: bool) -> None:
    """Print which of a profile's cases a recording has, by kernel type, and the longest others."""
    from collector.profiles.kernel_details import read_profile
    from collector.report.recorded_share import recorded_share
    from collector.workloads.recorded_step import read_recording
    from jobs.planning.sources import completed_records

    found = read_recording(recording)
    launched = completed_records(one.record() for _, one, _ in found.launches())
    unique = tuple({record.case_id: record for record in launched}.values())
    share = recorded_share(completed_records(read_profile([profile]).records), unique)
    if as_json:
        print_json(
            {
                "recording": str(recording),
                "time_us": share.time_us,
                "recorded_us": share.recorded_us,
                "kernels": [asdict(one) for one in share.kernels],
                "missing": [one.case.describe() for one in share.missing],
                "unmatched": [one.case.describe() for one in share.unmatched],
            }
        )
        return
    say_lines(_share_lines(recording, share))


def _share_lines(recording: Path, share: RecordedShare) -> Iterator[str]:
    whole_us = share.time_us or 1.0
    yield f"recording   {recording}"
    cases = sum(one.cases for one in share.kernels)
    same = sum(one.recorded_cases for one in share.kernels)
    yield (
        f"contained   {percent(share.recorded_us / whole_us)} of the computing time of the "
        f"profile, {same:,} of {counted(cases, 'case')}"
    )
    yield f"  {'kernel type':<32} {'time':>7} {'cases':>7} {'contained':>10}"
    for one in share.kernels:
        part = one.recorded_us / one.time_us if one.time_us else 0.0
        text = percent(part) if one.is_recorded else "no kernel"
        of_time = percent(one.time_us / whole_us)
        yield f"  {one.kernel_type:<32} {of_time:>8} {one.cases:7,} {text:>10}"
    yield from _listed("only in the profile", [one.case.describe() for one in share.missing])
    yield from _listed("only in the recording", [one.case.describe() for one in share.unmatched])


def _listed(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield f"{title}: {counted(len(texts), 'case')}"
        yield from (f"  {text}" for text in texts[:_LISTED])


def _counts(places: Mapping[str, int]) -> tuple[str, str]:
    """Return the cells of the number of launches, and of their places."""
    each = ", ".join(f"{count} {place}" for place, count in places.items())
    return str(sum(places.values())), each


def _graph(is_inside: bool) -> str:
    return "yes" if is_inside else ""
