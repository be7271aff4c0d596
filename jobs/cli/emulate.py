"""`opmeter emulate`: TTFT, TPOT and throughput of a model under load, with the scheduler of its
engine and the durations of a database."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collector.codec.errors import BadInput, OpmeterError
from collector.codec.text import counted, percent, time_text
from jobs.cli import options
from jobs.cli.terminal import print_json, print_table, say_lines

if TYPE_CHECKING:
    from collector.engine.durations import Duration
    from collector.engine.engine_process import EngineSettings, Served
    from collector.engine.model_folder import ModelFolder
    from collector.report.serving_pages import Ends, ServedConfiguration
    from collector.workloads.served_requests import ServedRequest
    from jobs.cli.configurations import Configuration
    from jobs.cli.step import Hosts
    from jobs.planning.host_costs import HostCosts
    from jobs.planning.served_calls import ServedCall
    from jobs.planning.step_time import BudgetRow, Narrowing, PassTimer

logger = logging.getLogger(__name__)

SWEEP = "--sweep"
_COUNT, _PROMPT, _PRODUCED = 64, 1024, 128
_STEP = "HOST step"  # what the engine does for a step besides its calls
_OF_GRAPHS = ("HOST replay", "HOST update")  # measured in decodes with graphs alone
_NOTHING = (0.0, 0.0, 0.0)
_VALUES = 0  # the run with all durations at their values
_TABLE = ("configuration", "NPUs", "TTFT p50", "TPOT p50", "tokens/s per NPU", "with data", "front")


def emulate_command(
    model: options.EngineModelArgument,
    flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- FLAGS]", help="further flags of `vllm serve`, after --"),
    ] = None,
    *,
    layout: options.EngineRanksOption = "",
    requests: Annotated[
        Path | None,
        typer.Option(
            help="trace of requests, as Mooncake (JSON Lines), Azure or BurstGPT (CSV) publish it"
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="requests that arrive per second: at random times, or in the pattern of a trace"
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="requests at once at most: the next is sent when one ends", min=1),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            help="number of requests; of a trace, its first ones  [default: 64, or all]", min=1
        ),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(help="tokens of each prompt, without --requests  [default: 1024]", min=1),
    ] = None,
    produced: Annotated[
        int | None,
        typer.Option("--output", help="tokens of each response  [default: 128]", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the random arrivals of --rate")] = 0,
    graph: Annotated[
        str, typer.Option(help="captured graphs: full-decode, piecewise, or eager without any")
    ] = "full-decode",
    speculative: Annotated[
        int, typer.Option(help="tokens that the model's MTP layers draft in each pass", min=0)
    ] = 0,
    accepted: Annotated[
        float | None,
        typer.Option(help="share of the drafted tokens that are accepted, at random", min=0, max=1),
    ] = None,
    quantization: Annotated[
        str, typer.Option(help="weights: w8a8, w8a8c8, w4a8 or bf16, as `opmeter model record`")
    ] = "",
    release: options.EngineReleaseOption = "vllm-ascend-0.18",
    generation: options.EngineGenerationOption = "A3",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE,VALUE ...: serve the load in each combination; a name is tp, dp, ep, "
            "graph, speculative, accepted, release, rate, concurrency, an option of vllm.LLM, or a "
            "variable of the engine"
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="further options of vllm.LLM, as JSON: max_num_seqs and others")
    ] = "",
    env: options.EngineVariablesOption = None,
    grid: options.PlacedRanksOption = options.A3_RANKS,
    host: options.HostOptions,
    where: options.VersionOptions,
    device: options.NewDeviceOption = None,
    logs: options.EngineLogsOption = None,
    misses: Annotated[
        Path | None,
        typer.Option(help="file to which the cases are added that narrow the ranges most"),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="new or earlier folder for a page of the Pareto front")
    ] = None,
    lang: Annotated[str, typer.Option(help="language of the page: en or zh")] = "en",
    as_json: options.JsonOption = False,
) -> None:
    """Predict TTFT, TPOT and throughput of a model under load, without an NPU.

    vLLM and vLLM-Ascend serve the requests with their own scheduler in virtual time: each call
    takes the time that `opmeter step` gives it, from a version of the database and the measured
    time of a host, or a range where there is no data. The load is served three times, with all
    durations at their values and at both ends. If a tenth of the device's time or more has no data,
    only the range is shown. Equal options give equal results. It takes some minutes, on
    x86-64 with gcc; the first use of a release downloads its wheels. The file of --misses is a
    source of a campaign.

    \b
    Examples:
      opmeter emulate qwen3-32b --layout tp=4 --rate 2 --prompt 2048 --output 256
      opmeter emulate qwen3-32b --layout tp=4 --requests trace.jsonl --root s3://perf/opmeter
      opmeter emulate qwen3-32b --concurrency 32 --sweep tp=4,8 max_num_seqs=16,64 --report front
      opmeter emulate qwen3-32b --layout tp=4 --rate 2 -- --max-num-batched-tokens 4096
    """
    from collector.codec.scratch import scratch_folder
    from collector.engine.engine_process import (
        EngineSettings,
        read_environment,
        read_options,
    )
    from collector.engine.model_folder import find_model
    from collector.report.pages import Folder
    from collector.report.serving_pages import write_serving
    from jobs.cli.configurations import Configuration, graph_mode, swept
    from jobs.cli.recordings import check_engine, engine_ranks, quantised_model
    from jobs.cli.step import write_misses

    check_engine(generation, logs)
    ranks = engine_ranks(layout)
    settings = EngineSettings(
        release=release,
        passes=(),
        device=generation,
        tp=ranks.tp,
        dp=ranks.dp,
        ep=ranks.ep,
        graph=graph_mode(graph),
        speculative=speculative,
        accepted=accepted,
        environment=read_environment(env or ()),
        options=read_options("--engine", engine),
        flags=_flags(flags or ()),
    )
    configurations = swept(sweep or (), Configuration("", settings, rate, concurrency))
    loads = [_load(requests, one, (count, prompt, produced), seed) for one in configurations]
    folder = None if report is None else Folder(report, lang)
    database = Durations(where, device, grid, host)
    served = _Serving(quantised_model(find_model(model), quantization), database)
    for name in ("collector.engine", __name__):
        logging.getLogger(name).setLevel(logging.INFO)
    with scratch_folder("emulate") as scratch:
        work = (logs or scratch).absolute()
        found = served.each(configurations, loads, work)
    budgets, narrowed = served.budgets, database.narrowed(served.budgets)
    if misses is not None:
        write_misses(misses, budgets, narrowed)
    if folder is not None:
        with folder:
            write_serving(folder, f"{served.model.name} {layout}".strip(), database.place, found)
    if as_json:
        values = [_as_json(*one) for one in zip(found, narrowed, strict=True)]
        print_json(
            {"version": database.place, "configurations": values}
            if sweep
            else {"version": database.place, **values[0]}
        )
        return
    if sweep:
        _print_sweep(found, database.place)
    else:
        say_lines(_lines(found[0], database.place))
    say_lines(_closing_lines(found, narrowed, misses))
    if report is not None:
        say_lines([f"page        {report / 'index.html'}"])


def _flags(words: Sequence[str]) -> tuple[str, ...]:
    """Return the flags after `--`. Raises BadInput for another argument."""
    if words and not words[0].startswith("-"):
        raise BadInput(f"unexpected argument {words[0]!r}; flags of `vllm serve` are after --")
    return tuple(words)


def _load(
    trace: Path | None,
    one: Configuration,
    sizes: tuple[int | None, int | None, int | None],
    seed: int,
) -> Sequence[ServedRequest]:
    """Return the requests of a trace, those that arrive at a rate, or those that are there at the
    begin."""
    from collector.workloads.request_traces import read_requests
    from collector.workloads.served_requests import ServedRequest, arriving_requests, at_rate

    rate = one.rate
    if rate is not None and not 0 < rate < float("inf"):
        raise BadInput(f"--rate: expected a number above 0, got {rate}")
    count, prompt, produced = sizes
    if trace is not None:
        if prompt is not None or produced is not None:
            raise BadInput("--prompt, --output: a trace of --requests has its own")
        found = read_requests(trace, count)
        return found if rate is None else at_rate(found, rate)
    if rate is None and one.concurrency is None:
        raise BadInput("expected --requests, --rate or --concurrency")
    lengths = (prompt or _PROMPT, produced or _PRODUCED)
    if rate is None:
        return [ServedRequest(0, *lengths)] * (count or _COUNT)
    return arriving_requests(count or _COUNT, rate, *lengths, seed)


class Durations:
    """Where the times of calls are from: a version of the database, or a device's rates."""

    def __init__(
        self,
        where: options.VersionOptions,
        device: str | None,
        grid: str,
        host: options.HostOptions,
    ) -> None:
        from collector.model.stack import backend_of
        from jobs.cli.look_up import messages_of
        from jobs.cli.step import Hosts, assumptions, known_version

        host.check()
        self._version, self._stack = known_version(where, device)
        self.place = self._version.path if self._version else self._stack.device
        self.backend = backend_of(self._stack.device)
        self.collectives = messages_of(grid)
        self.hosts: Hosts | None = None if host.host_us else Hosts(where, host.host)
        self._assumed = assumptions(host)

    def timer(self, costs: Callable[[], HostCosts | None]) -> PassTimer:
        """Return a timer of single calls with these costs of a host."""
        from jobs.planning.step_time import pass_timer

        return pass_timer(self._version, self._stack, self._assumed, lambda _: costs())

    def narrowed(self, budgets: Sequence[Sequence[BudgetRow]]) -> list[Narrowing]:
        """Return the cases that halve the width of the device's time, of each budget."""
        from jobs.cli.look_up import campaign_of
        from jobs.cli.step import narrowings

        campaign = campaign_of({"misses": "misses.jsonl"}, "", self._stack.device)
        return narrowings(budgets, campaign, self._stack)


class CallTimes:
    """The times of the calls of an engine."""

    def __init__(self, folder: ModelFolder, settings: EngineSettings, database: Durations) -> None:
        from collector.engine.engine_process import recording_of
        from jobs.planning.step_time import EAGER, GRAPH

        self._recording, self._database = recording_of(folder, settings), database
        self._timer = database.timer(lambda: self._costs(self._mode))
        self._mode = EAGER  # of the call whose pass is made: the pass does not show it
        self._step_mode = GRAPH if settings.graph else EAGER
        self._run: int | None = None  # before the load is served, calls take no time
        self._times: Counter[str] = Counter()

    def count(self, text: str, times: int) -> None:
        """Count how often a call ran with all durations at their values."""
        if self._run == _VALUES:
            self._times[text] += times

    def budget(self) -> Sequence[BudgetRow]:
        """Return what makes the time of the device wide."""
        from jobs.planning.served_calls import device_budget

        return device_budget((self._call(text), times) for text, times in self._times.items())

    def duration_of(self, text: str) -> Duration:
        """Return the times of a call in the run that was begun last."""
        from collector.engine.durations import RUN, Duration
        from jobs.planning.served_calls import DEVICE_SOURCES

        if text.startswith(RUN):
            self._run = int(text.removeprefix(RUN))
        if self._run is None or text.startswith(RUN):
            return Duration(0, 0)
        one = self._call(text)
        host_us, device_us = one.host_us[self._run], one.device_us[self._run]
        source = DEVICE_SOURCES.index(one.source)
        return Duration(round(host_us * 1000), round(device_us * 1000), source)

    @property
    def host(self) -> str:
        """Return which host the times are of."""
        from jobs.planning.step_time import EAGER

        if self._database.hosts is None:
            return "given by --host-us"
        costs = self._costs(EAGER)
        return f"measured, {costs}" if costs else "assumed"

    @cache  # noqa: B019  one object lives as long as the command
    def _costs(self, mode: str) -> HostCosts | None:
        if self._database.hosts is None:
            return None
        one = self._recording
        return self._database.hosts.costs(one.model, one.release, one.layout, mode)

    @cache  # noqa: B019
    def _call(self, text: str) -> ServedCall:
        from collector.database.host_sessions import BETWEEN
        from collector.engine.recorded_calls import pass_of_call
        from jobs.planning.predicted_passes import launches_of
        from jobs.planning.served_calls import ASSUMED, ServedCall, served_call
        from jobs.planning.step_time import EAGER, GRAPH

        if text == _STEP:
            found = costs.call(BETWEEN) if (costs := self._costs(self._step_mode)) else None
            ends = (found.value_us, found.low_us, found.high_us) if found else _NOTHING
            return ServedCall(ends, _NOTHING, ASSUMED)
        self._mode = GRAPH if text in _OF_GRAPHS else EAGER
        one = pass_of_call(text)
        database = self._database
        tables = launches_of(self._recording, one, database.collectives, database.backend)
        return served_call(self._timer.of_recording(one, tables))


class _Serving:
    """A model that is served in one configuration after the other.

    budgets  what makes the time of the device wide, of each that is served"""

    def __init__(self, model: ModelFolder, database: Durations) -> None:
        self.model, self._database = model, database
        self.budgets: list[Sequence[BudgetRow]] = []

    def each(
        self,
        configurations: Sequence[Configuration],
        loads: Sequence[Sequence[ServedRequest]],
        work: Path,
    ) -> list[ServedConfiguration]:
        """Serve the load of each configuration. One that is refused has the reason; if none is
        served, this error is raised."""
        from collector.report.serving_pages import ServedConfiguration

        found: list[ServedConfiguration] = []
        begun, errors = time.monotonic(), []
        for number, (one, load) in enumerate(zip(configurations, loads, strict=True), 1):
            try:
                place = work / str(number) if one.name else work
                found.append(self._served(one, load, place))
            except OpmeterError as error:
                errors.append(error)
                if len(errors) == len(configurations):
                    raise
                self.budgets.append(())
                found.append(ServedConfiguration(one.name, one.settings.ranks, refused=str(error)))
            if number < len(configurations):
                left = (time.monotonic() - begun) / number * (len(configurations) - number)
                eta = time_text(left * 1e6)
                logger.info("served %d of %d configurations, ETA %s", number, len(loads), eta)
        return found

    def _served(
        self, one: Configuration, load: Sequence[ServedRequest], work: Path
    ) -> ServedConfiguration:
        from collector.engine.engine_process import check_served, run_served
        from collector.report.serving_pages import ServedConfiguration
        from collector.workloads.served_requests import serving_times

        check_served(one.settings)
        times = CallTimes(self.model, one.settings, self._database)
        runs = run_served(
            *(self.model, one.settings, load, times.duration_of, work),
            count=times.count,
            concurrency=one.concurrency or 0,
            runs=3,
        )
        self.budgets.append(times.budget())
        return ServedConfiguration(
            one.name,
            one.settings.ranks,
            times.host,
            tuple(serving_times(run.begins_ns, run.tokens_ns) for run in runs),
            _shares(runs[_VALUES]),
        )


def _shares(run: Served) -> Mapping[str, float]:
    """Return the share of the device's time by the source of durations."""
    from jobs.planning.served_calls import DEVICE_SOURCES

    whole = fsum(run.device_ns) or 1.0
    return {name: ns / whole for name, ns in zip(DEVICE_SOURCES, run.device_ns, strict=False) if ns}


# What is printed.


def _ends_text(one: ServedConfiguration, metric: str, ends: Ends | None) -> str:
    """Return a value with its range, or the range alone where too little of the time has data."""
    from collector.report.serving_pages import THROUGHPUT

    if ends is None:
        return "-"
    is_rate = metric == THROUGHPUT
    value, low, high = (f"{x:,.1f}" if is_rate else time_text(x * 1000) for x in ends)
    return f"{value} ({low} to {high})" if one.is_known else f"{low} to {high}"


def _lines(one: ServedConfiguration, place: str) -> Iterator[str]:
    from collector.report.serving_pages import THROUGHPUT

    first = one.runs[_VALUES]
    requests = counted(len(first.ttft_ms), "request")
    yield f"served      {requests}, {first.tokens:,} tokens in {time_text(first.duration_s * 1e6)}"
    yield f"version     {place}"
    yield f"host        {one.host}"
    for metric, name, ends in one.metrics():
        unit = " tokens/s" if metric == THROUGHPUT else f", {name}"
        yield f"{metric:<11} {_ends_text(one, metric, ends)}{unit}"
    parts = ", ".join(f"{percent(share)} {name}" for name, share in one.shares.items())
    yield f"device      its time is {parts}"


def _print_sweep(found: Sequence[ServedConfiguration], place: str) -> None:
    from collector.report.serving_pages import THROUGHPUT, TPOT, TTFT, front_text, runs_on_front

    say_lines([f"version     {place}"])
    hosts = dict.fromkeys(one.host for one in found if one.runs)
    for host in hosts:
        names = "" if len(hosts) == 1 else f": {', '.join(x.name for x in found if x.host == host)}"
        say_lines([f"host        {host}{names}"])
    rows = []
    for one, runs in zip(found, runs_on_front(found), strict=True):
        ends = [_ends_text(one, name, one.middle(name)) for name in (TTFT, TPOT, THROUGHPUT)]
        known = percent(one.known) if one.runs else "-"
        front = front_text(runs, len(one.runs)) if one.runs else "-"
        rows.append((one.name, str(one.npus), *ends, known, front))
    print_table(_TABLE, rows)
    say_lines(f"refused     {one.name}: {one.refused}" for one in found if one.refused)


def _closing_lines(
    found: Sequence[ServedConfiguration], narrowed: Sequence[Narrowing], misses: Path | None
) -> Iterator[str]:
    """Yield what is measured next."""
    if any(one.runs and not one.is_known for one in found):
        yield "range       where too few durations are known for a value"
    cases = {case.case_id for one in narrowed for case in one.cases}
    if not cases:
        yield "to narrow   no measurement of a case narrows the time of the device"
        return
    minutes = max(one.device_s for one in narrowed) / 60
    left = percent(max(one.left for one in narrowed if one.cases))
    source = f"; as a source: misses: {misses}" if misses else "; --misses FILE writes a source"
    yield (
        f"to narrow   measure {counted(len(cases), 'case')}, {minutes:.2g} device-minutes: they "
        f"leave {left} of the width of the device's time{source}"
    )


def _as_json(one: ServedConfiguration, narrow: Narrowing) -> dict[str, Any]:
    from collector.report.serving_pages import THROUGHPUT

    if not one.runs:
        return {"configuration": one.name, "npus": one.npus, "refused": one.refused}
    first = one.runs[_VALUES]
    return {
        "configuration": one.name,
        "npus": one.npus,
        "host": one.host,
        "requests": len(first.ttft_ms),
        "tokens": first.tokens,
        "duration_s": first.duration_s,
        "metrics": [
            {
                "metric": metric if metric == THROUGHPUT else f"{metric}_ms",
                "of": name,
                "value": value if one.is_known else None,
                "low": low,
                "high": high,
            }
            for metric, name, (value, low, high) in one.metrics()
        ],
        "device_time_by_source": dict(one.shares),
        "to_halve": {
            "cases": [record.case_id for record in narrow.cases],
            "device_min": narrow.device_s / 60,
            "left": narrow.left,
        },
    }
