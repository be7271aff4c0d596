"""`opmeter step`: the time of a pass of a model, its interval, its parts and its critical path."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collector.codec.errors import BadInput, file_errors
from collector.codec.numbers import parse_number
from collector.codec.text import counted, percent, time_text
from collector.quality.statistics import percentile
from jobs.cli import options
from jobs.cli.captured_step import captured_step
from jobs.cli.recordings import RECORDING_SUFFIX
from jobs.cli.terminal import print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from collector.model.stack import Stack
    from collector.timeline.call_graph import Cause
    from jobs.campaign.campaign_file import Campaign
    from jobs.planning.host_costs import HostCosts
    from jobs.planning.step_time import (
        AssumedTime,
        BudgetRow,
        Narrowing,
        StepAssumptions,
        TimedPass,
    )
    from opmeter.database import Database
    from opmeter.version import Version

_REQUESTS, _KEYS = 16, 4096
_LISTED = 10
_PATH = ("share", "time", "times", "each", "critical path")
_BUDGET = ("share", "width", "times", "each", "interval", "known by", "what makes it wide")


def step_command(
    model: Annotated[
        str,
        typer.Argument(
            help="name of `opmeter model list`, a config.json, a recording, or a folder of "
            "`opmeter capture pass`"
        ),
    ],
    *,
    layout: options.LayoutOption = "",
    requests: Annotated[
        int | None,
        typer.Option(help="requests of the pass  [default: 16; of --prompt, 1]", min=1),
    ] = None,
    keys: options.DecodedTokensOption = None,
    prompt: Annotated[
        int | None,
        typer.Option(help="tokens of each prompt: the time of their prefill, instead", min=1),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="eager or graph  [default: graph; of --prompt, eager]")
    ] = "",
    release: options.ReleaseOption = None,
    grid: options.PlacedRanksOption = options.A3_RANKS,
    host: options.HostOptions,
    trace: Annotated[
        Path | None, typer.Option(help="file for Perfetto: a track for the host and each stream")
    ] = None,
    misses: Annotated[
        Path | None,
        typer.Option(help="file to which the cases are added that narrow the interval most"),
    ] = None,
    fit: Annotated[
        list[Path] | None,
        typer.Option(
            help="captured passes, or a folder of them, to which the context factors of a captured "
            "pass are fitted; may be repeated"
        ),
    ] = None,
    against: Annotated[
        bool, typer.Option("--against", help="compare a captured pass with its measured time")
    ] = False,
    where: options.VersionOptions,
    device: options.NewDeviceOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Predict the time of a model's pass: TPOT of a decode, TTFT of a prefill.

    A simulation of the pass has the host's calls, the streams, and the waits of messages, with the
    durations of a version of the database. A recording has the order of all calls; without one, an
    order is assumed. The time of the host is that of `opmeter host`, if the database has it for the
    model, its layout and mode. Durations, host costs and waits without data are ranges, and the
    interval contains them. The file of --misses is a source of a campaign.

    \b
    Examples:
      opmeter step qwen3-32b --layout tp=4 --requests 16 --context 4096
      opmeter step qwen3-32b --layout tp=4 --prompt 4096 --mode eager --host-us 40:90
      opmeter step qwen3-32b.json.gz --trace pass.json --misses to-measure.jsonl
      opmeter step prof/four --fit prof --against
    """
    if _is_capture(model):
        given = (layout, requests, keys, prompt, mode, release, trace, misses, device)
        if any(given) or host != options.HostOptions():
            raise BadInput(f"{model}: a captured pass has its own load; see --fit and --against")
        captured_step(Path(model), where, fit or (), against=against, as_json=as_json)
        return
    if fit or against:
        raise BadInput("--fit, --against: expected a folder of `opmeter capture pass`")
    from jobs.planning.step_time import error_budget

    if model.endswith(RECORDING_SUFFIX) and any((layout, requests, keys, prompt, mode, release)):
        raise BadInput(
            "--layout, --requests, --context, --prompt, --mode, --release: a recording has its own"
        )
    host.check()
    assumed = assumptions(host)
    workload = options.WorkloadOptions(model=model, layout=layout, release=release, grid=grid)
    hosts = None if host.host_us else Hosts(where, host.host)
    timer = _Timer(workload, where, device, assumed, hosts)
    if model.endswith(RECORDING_SUFFIX):
        name, passes = timer.recorded()
    else:
        name, passes = timer.assumed_order((requests, keys, prompt), mode)
    budgets = [error_budget(one) for one in passes]
    narrowed = narrowings(budgets, timer.campaign, timer.stack)
    if trace is not None:
        _write_trace(trace, name, passes)
    if misses is not None:
        write_misses(misses, budgets, narrowed)
    found = list(zip(passes, budgets, narrowed, strict=True))
    if as_json:
        values = [_as_json(*one, assumed) for one in found]
        print_json({"model": name, "version": timer.place, "passes": values})
        return
    for one, rows, narrow in found:
        say_lines(_lines(name, timer.place, one, assumed))
        _print_path(one)
        _print_budget(rows)
        say(_narrowing_line(narrow, misses))


def _is_capture(model: str) -> bool:
    """Return whether a model is named by a folder that is none of a model."""
    from collector.workloads.models import bundled_decoder

    folder = Path(model)
    has_config = (folder / "config.json").exists()
    return folder.is_dir() and not has_config and bundled_decoder(model) is None


class _Timer:
    """The passes of a model with the durations of a version, and the costs of measuring others."""

    def __init__(
        self,
        workload: options.WorkloadOptions,
        where: options.VersionOptions,
        device: str | None,
        assumed: StepAssumptions,
        hosts: Hosts | None,
    ) -> None:
        from jobs.cli.look_up import campaign_of
        from jobs.planning.step_time import pass_timer

        name = str(workload.model)
        version, self.stack = known_version(where, device)
        is_recording = name.endswith(RECORDING_SUFFIX)
        source = {"recording": name} if is_recording else workload.model_source()
        self.campaign = campaign_of(source, workload.grid, self.stack.device)
        (self._source,) = self.campaign.sources
        self._backend = self.campaign.backend
        self.place = version.path if version else self.stack.device
        self._timer = pass_timer(
            version,
            self.stack,
            assumed,
            lambda mode: None if hosts is None else hosts.costs(*self._decoded, mode),
        )
        self._decoded: tuple[str, str, Mapping[str, int]] = ("", "", {})

    def recorded(self) -> tuple[str, list[TimedPass]]:
        """Return the name and layout of a recording, and its passes."""
        from collector.workloads.recorded_step import read_recording
        from jobs.campaign.source_kinds import RecordingSource
        from jobs.planning.predicted_passes import launches_of

        assert isinstance(self._source, RecordingSource)
        recording = read_recording(self._source.path)
        self._decoded = (recording.model, recording.release, recording.layout)
        tables = [
            launches_of(recording, one, self._source.collectives, self._backend)
            for one in recording.passes
        ]
        try:
            passes = list(map(self._timer.of_recording, recording.passes, tables))
        except BadInput as error:
            raise BadInput(str(error), path=self._source.path) from error
        ranks = ",".join(f"{name}={count}" for name, count in recording.layout.items())
        return f"{recording.model} {ranks}", passes

    def assumed_order(
        self, load: tuple[int | None, int | None, int | None], mode: str
    ) -> tuple[str, list[TimedPass]]:
        """Return the name and layout of a model, and its pass of requests, keys or prompts."""
        from collector.workloads.models import read_decoder
        from collector.workloads.serving import Batch, Phase
        from jobs.campaign.source_kinds import ModelSource
        from jobs.planning.predicted_passes import passes_of_model
        from jobs.planning.step_time import EAGER, GRAPH, MODES

        assert isinstance(self._source, ModelSource)
        requests, keys, prompt = load
        if mode not in ("", *MODES):
            raise BadInput(f"--mode: expected {' or '.join(MODES)}, got {mode!r}")
        if prompt is not None and keys is not None:
            raise BadInput("--context is of decodes: --prompt excludes it")
        if prompt is None:
            batch = Batch(Phase.DECODE, requests or _REQUESTS, 1, keys or _KEYS)
        else:
            batch = Batch(Phase.PREFILL, requests or 1, prompt, prompt)
        model = self._source.model
        decoder = read_decoder(model) if isinstance(model, Path) else model
        source = replace(self._source, model=decoder)
        mode = mode or (GRAPH if prompt is None else EAGER)
        spread, release = source.layout, source.release
        ranks = {"tp": spread.tp, "dp": spread.dp, "ep": spread.ep}
        self._decoded = (decoder.name, release, ranks)
        passes = passes_of_model(source, [batch], self._backend)
        found = [self._timer.of_model(one, mode) for one in passes]
        return f"{decoder.name} {source.layout}", found


def narrowings(
    budgets: Iterable[Sequence[BudgetRow]], campaign: Campaign, stack: Stack
) -> list[Narrowing]:
    """Return the cases that halve the width of each budget, measured as a campaign says."""
    from collector.ops.registry import find_operator
    from jobs.planning.forecast import peaks_of
    from jobs.planning.step_time import narrowing
    from jobs.planning.worth import device_seconds, session_start_s

    peaks = peaks_of(stack)
    device_s = device_seconds(campaign, peaks, find_operator)
    start_s = session_start_s(campaign, peaks, find_operator)
    return [narrowing(rows, device_s, start_s) for rows in budgets]


class Hosts:
    """The hosts of a database whose time is measured."""

    def __init__(self, where: options.VersionOptions, chosen: str | None) -> None:
        self._where, self._chosen = where, chosen

    def costs(
        self, model: str, release: str, layout: Mapping[str, int], mode: str
    ) -> HostCosts | None:
        """Return the costs of a host in decodes of a model; None without any. Raises BadInput
        where several hosts are there and none is chosen."""
        from collector.database.host_sessions import HostDecode
        from jobs.planning.host_costs import HostCosts, host_directories, ranks_text

        there = self._opened.directories if self._opened else ()
        named = host_directories(there, release, self._chosen)
        decode = HostDecode(model, ranks_text(layout), mode)
        found = [
            costs
            for path in named
            if self._opened and (costs := HostCosts.find(self._opened.directory(path), decode))
        ]
        if len(found) > 1:
            known = ", ".join(one.directory.path for one in found)
            raise BadInput(f"--host: expected one of {known}")
        return found[0] if found else None

    @cached_property
    def _opened(self) -> Database | None:
        from collector.database.commits import find_head
        from collector.store.opening import DEFAULT_ROOT
        from jobs.cli.opening import chosen_commit, open_database
        from opmeter.database import database_at

        root = self._where.root or DEFAULT_ROOT
        if self._where.root is None and not Path(DEFAULT_ROOT).exists():
            return None
        store = open_database(root)
        if find_head(store) is None:
            return None
        return database_at(store, chosen_commit(store, root, self._where.version))


def known_version(
    where: options.VersionOptions, device: str | None
) -> tuple[Version | None, Stack]:
    """Return the version directory with its stack; of a device without one, the device alone."""
    from collector.database.commits import find_head
    from collector.model.stack import Stack
    from collector.store.opening import DEFAULT_ROOT
    from jobs.cli.look_up import check_known_device, shown_stack
    from jobs.cli.opening import open_database
    from jobs.cli.query import opened_version

    if device is not None:
        check_known_device(device, where)
        return None, Stack(device=device, torch="")
    root = where.root or DEFAULT_ROOT
    if find_head(open_database(root)) is None:
        raise BadInput(
            f"no database at {root}: nothing was merged there yet; --device gives the range of a "
            "device without a version"
        )
    version = opened_version(root, where.version, where.directory, reused=True)
    return version, shown_stack(root, where.version, version.path)


def assumptions(given: options.HostOptions) -> StepAssumptions:
    from jobs.planning.step_time import StepAssumptions

    usual = StepAssumptions()
    if given.host_us:
        call, step = (
            _given("--host-us", given.host_us, one) for one in (usual.host_call, usual.host_step)
        )
        usual = replace(usual, host_call=call, host_step=step)
    if given.cann_us:
        usual = replace(usual, cann_call=_given("--cann-us", given.cann_us, usual.cann_call))
    if given.wait_us:
        is_captured = Path(given.wait_us).exists()
        wait = _captured_waits(given.wait_us, usual.wait) if is_captured else None
        usual = replace(usual, wait=wait or _given("--wait-us", given.wait_us, usual.wait))
    return usual


def _captured_waits(path: str, usual: AssumedTime) -> AssumedTime:
    """Return the waits of the messages of captured ranks. Raises BadInput unless two of them have
    messages in common."""
    from collector.comm.waits import message_waits
    from collector.profiles.transfers import find_transfers, read_transfers

    folders = find_transfers(Path(path))
    found = message_waits(map(read_transfers, folders))
    if not found.messages:
        raise BadInput(
            "expected captures of several ranks of one run with messages in common, got "
            f"{counted(len(folders), 'rank')}",
            path=path,
        )
    ordered = sorted(found.waits_us)
    return replace(
        usual,
        value_us=fmean(ordered),
        low_us=percentile(ordered, 0.025),
        high_us=percentile(ordered, 0.975),
        origin=f"of {found} in {path}",
        samples=found.waits_us,
    )


def _given(option: str, text: str, usual: AssumedTime) -> AssumedTime:
    """Return the time of an option: one number, or the ends of a range, whose middle is used."""
    try:
        ends = [parse_number(part) for part in text.split(":")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2) or min(ends) < 0 or ends[0] > ends[-1]:
        raise BadInput(f"{option}: expected a time in us such as 50, or 40:90, got {text!r}")
    low_us, high_us = ends[0], ends[-1]
    value_us = (low_us * high_us) ** 0.5 if low_us else high_us / 2
    if low_us == high_us:
        value_us = low_us
    origin = f"given by {option}"
    return replace(usual, value_us=value_us, low_us=low_us, high_us=high_us, origin=origin)


def _write_trace(path: Path, name: str, passes: Sequence[TimedPass]) -> None:
    from collector.store.atomic import write_through
    from collector.timeline.pass_time import spans
    from collector.timeline.pass_trace import trace_events

    events = chain.from_iterable(
        trace_events(f"{name}: {one.title}", number, spans(one.graph))
        for number, one in enumerate(passes, 1)
    )
    with file_errors(path, "written"):
        write_through(path, json.dumps({"traceEvents": list(events)}).encode())


def write_misses(
    path: Path, budgets: Sequence[Sequence[BudgetRow]], narrowed: Sequence[Narrowing]
) -> None:
    """Add the cases to measure to a file of misses; the weight is the width that each causes."""
    from collector.model.demand import MissedCase
    from collector.model.vocabulary import BASE_CELLS, EP_SIZE, RUNTIME_PREFIX
    from opmeter.misses import MissLog

    log = MissLog(path)
    for rows, narrow in zip(budgets, narrowed, strict=True):
        chosen = {record.case_id for record in narrow.cases}
        for row in rows:
            record = row.record
            if record is None or record.case_id not in chosen:
                continue
            cells = {
                name: text
                for name, text in {**record.cells, **record.extra}.items()
                if name in (*BASE_CELLS, EP_SIZE) or name.startswith(RUNTIME_PREFIX)
            }
            reason = "wide interval of a pass"
            log.add_case(MissedCase(record.kernel_type, cells, reason, row.times, row.width_us))
    if len(log):
        log.write()


# What is printed.


def _assumed_as_json(assumed: StepAssumptions) -> dict[str, dict[str, Any]]:
    """Return the assumed times without samples, of which a capture has thousands."""
    times: dict[str, dict[str, Any]] = asdict(assumed)
    return {
        name: {key: value for key, value in time.items() if key != "samples"}
        for name, time in times.items()
    }


def _as_json(
    one: TimedPass, rows: Sequence[BudgetRow], narrow: Narrowing, assumed: StepAssumptions
) -> dict[str, Any]:
    launches, (low_us, value_us, high_us) = one.unknown()
    return {
        "pass": one.title,
        "metric": one.metric,
        "mode": one.mode,
        "order": one.order,
        "time_us": one.time.value_us,
        "low_us": one.time.low_us,
        "high_us": one.time.high_us,
        "parts_us": one.time.parts,
        "hidden_us": one.time.hidden_us,
        "assumed": _assumed_as_json(assumed),
        "host": None if one.host is None else _host_as_json(one),
        "unknown": {
            "launches": launches,
            "value_us": value_us,
            "low_us": low_us,
            "high_us": high_us,
        },
        "critical_path": [
            {"name": name, "cause": cause, "times": times, "time_us": us}
            for name, cause, times, us in _on_path(one)
        ],
        "error_budget": [
            {
                "name": row.quantity.name,
                "times": row.times,
                "value_us": row.quantity.value_us,
                "low_us": row.quantity.low_us,
                "high_us": row.quantity.high_us,
                "known_by": _known_by(row),
                "width_us": row.width_us,
                "share": row.share,
                "case_id": row.record.case_id if row.record else "",
            }
            for row in rows
        ],
        "to_halve": {
            "cases": [record.case_id for record in narrow.cases],
            "device_min": narrow.device_s / 60,
            "left": narrow.left,
            "least": narrow.least,
        },
    }


def _host_as_json(one: TimedPass) -> dict[str, Any]:
    measured_us, whole_us = one.measured_host_us()
    return {"measured_by": str(one.host), "measured_us": measured_us, "time_us": whole_us}


def _lines(name: str, place: str, one: TimedPass, assumed: StepAssumptions) -> Iterator[str]:
    time = one.time
    ends = f"{time_text(time.low_us)} to {time_text(time.high_us)}"
    yield f"{one.metric:<11} {time_text(time.value_us)} ({ends}, 95 %)"
    yield f"pass        {name}: {one.title}, {one.mode}"
    yield f"version     {place}"
    yield f"order       {one.order}"
    parts = ", ".join(f"{cause} {time_text(us)}" for cause, us in time.parts.items() if us)
    yield f"parts       {parts}; hidden beside them {time_text(time.hidden_us)}"
    if one.host is not None:
        measured_us, whole_us = one.measured_host_us()
        share = percent(measured_us / (whole_us or 1.0))
        yield f"host        {share} of {time_text(whole_us)} measured: {one.host}"
    names = [quantity.name for quantity in one.graph.quantities]
    for each in (assumed.host_call, assumed.host_step, assumed.cann_call, assumed.wait):
        if any(name.startswith(each.name) for name in names):
            texts = dict.fromkeys((time_text(each.low_us), time_text(each.high_us)))
            yield f"range       {each.name}: {' to '.join(texts)}, {each.origin}"
    count, (low_us, value_us, high_us) = one.unknown()
    if count:
        launches = counted(count, "launch or copy", "launches and copies")
        ends = f"{time_text(low_us)} to {time_text(high_us)}"
        yield f"unknown     {launches} without data: {ends}, counted as {time_text(value_us)}"


def _on_path(one: TimedPass) -> list[tuple[str, Cause, int, float]]:
    """Return what the critical path consists of, the longest first."""
    found: dict[tuple[str, Cause], list[float]] = defaultdict(list)
    for span in one.time.path:
        found[span.quantity.name, span.quantity.cause].append(span.end_us - span.start_us)
    rows = [(*key, len(times), sum(times)) for key, times in found.items()]
    return sorted(rows, key=lambda row: (-row[3], row[0]))


def _print_path(one: TimedPass) -> None:
    whole_us = one.time.value_us or 1.0
    rows = [
        (percent(us / whole_us), time_text(us), f"{times:,}", time_text(us / times), name)
        for name, _, times, us in _on_path(one)[:_LISTED]
    ]
    print_table(_PATH, rows)


def _print_budget(rows: Sequence[BudgetRow]) -> None:
    cells = [
        (
            *(percent(row.share), time_text(row.width_us), f"{row.times:,}"),
            time_text(row.quantity.value_us),
            f"{time_text(row.quantity.low_us)} to {time_text(row.quantity.high_us)}",
            *(_known_by(row), row.quantity.name),
        )
        for row in rows[:_LISTED]
    ]
    print_table(_BUDGET, cells)


def _known_by(row: BudgetRow) -> str:
    """Return the channel of a duration, or why there is none."""
    from jobs.planning.host_costs import MEASURED_HOST

    if row.launch is None:
        return "measured" if row.quantity.group == MEASURED_HOST else "assumed"
    return row.launch.predicted.channel or row.launch.predicted.reason or "unknown"


def _narrowing_line(narrow: Narrowing, misses: Path | None) -> str:
    source = f"; as a source: misses: {misses}" if misses and narrow.cases else ""
    cases = f"{counted(len(narrow.cases), 'case')}, {narrow.device_s / 60:.2g} device-minutes"
    if not narrow.cases:
        return (
            "to halve    no measurement of a case narrows the interval: host, waits and copies do"
        )
    if narrow.is_half:
        return f"to halve    measure {cases}{source}"
    left = percent(narrow.left)
    return f"to halve    not by measuring alone: {cases}, leave {left} of the width{source}"
