"""`opmeter emulate`: TTFT, TPOT and throughput of a model under load, with the scheduler of its
engine and the durations of a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, percent, time_text
from jobs.cli import options
from jobs.cli.terminal import print_json, say_lines

if TYPE_CHECKING:
    from collector.engine.durations import Duration
    from collector.engine.engine_process import EngineSettings, Served
    from collector.engine.model_folder import ModelFolder
    from collector.workloads.served_requests import ServedRequest, ServingTimes
    from jobs.cli.step import Hosts
    from jobs.planning.host_costs import HostCosts
    from jobs.planning.served_calls import ServedCall
    from jobs.planning.step_time import PassTimer

_COUNT, _PROMPT, _PRODUCED = 64, 1024, 128
_STEP = "HOST step"  # what the engine does for a step besides its calls
_OF_GRAPHS = ("HOST replay", "HOST update")  # measured in decodes with graphs alone
_NOTHING = (0.0, 0.0, 0.0)
_PERCENTILES = (0.5, 0.9, 0.99)
_MOST_WITHOUT_DATA = 0.1  # share of the device's time, from which on only a range is shown


def emulate_command(
    model: options.EngineModelArgument,
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
        bool, typer.Option("--graph/--eager", help="decodes in captured graphs, or eager")
    ] = True,
    release: options.EngineReleaseOption = "vllm-ascend-0.18",
    generation: options.EngineGenerationOption = "A3",
    engine: Annotated[
        str, typer.Option(help="further options of vllm.LLM, as JSON: max_num_seqs and others")
    ] = "",
    env: options.EngineVariablesOption = None,
    grid: options.PlacedRanksOption = options.A3_RANKS,
    host: options.HostOptions,
    where: options.VersionOptions,
    device: options.NewDeviceOption = None,
    logs: options.EngineLogsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Predict TTFT, TPOT and throughput of a model under load, without an NPU.

    vLLM and vLLM-Ascend serve the requests with their own scheduler in virtual time: each call
    takes the time that `opmeter step` gives it, from a version of the database and the measured
    time of a host, or a range where there is no data. The load is served three times, with all
    durations at their values and at both ends. If a tenth of the device's time or more has no data,
    only the range is shown. Equal options give equal results. It takes some minutes, on
    x86-64 with gcc; the first use of a release downloads its wheels.

    \b
    Examples:
      opmeter emulate qwen3-32b --layout tp=4 --rate 2 --prompt 2048 --output 256
      opmeter emulate qwen3-32b --layout tp=4 --requests trace.jsonl --root s3://perf/opmeter
    """
    import logging

    from collector.codec.files import scratch_folder
    from collector.engine.engine_process import (
        EngineSettings,
        GraphMode,
        check_served,
        read_environment,
        read_options,
        run_served,
    )
    from collector.engine.model_folder import find_model
    from collector.workloads.served_requests import serving_times
    from jobs.cli.recordings import check_engine, engine_ranks

    check_engine(generation, logs)
    load = _load(requests, rate, concurrency, (count, prompt, produced), seed)
    ranks = engine_ranks(layout)
    settings = EngineSettings(
        release=release,
        passes=(),
        device=generation,
        tp=ranks.tp,
        dp=ranks.dp,
        ep=ranks.ep,
        graph=GraphMode.FULL_DECODE if graph else None,
        environment=read_environment(env or ()),
        options=read_options("--engine", engine),
    )
    check_served(settings)
    folder = find_model(model)
    times = CallTimes(folder, settings, where, device, grid, host)
    logging.getLogger("collector.engine").setLevel(logging.INFO)
    with scratch_folder("emulate") as scratch:
        work = (logs or scratch).absolute()
        most = concurrency or 0
        runs = run_served(folder, settings, load, times.duration_of, work, concurrency=most, runs=3)
    shares = _shares(runs[0])
    found = [serving_times(one.begins_ns, one.tokens_ns) for one in runs]
    if as_json:
        print_json(_as_json(found, shares, times))
        return
    say_lines(_lines(found, shares, times))


def _load(
    trace: Path | None,
    rate: float | None,
    concurrency: int | None,
    sizes: tuple[int | None, int | None, int | None],
    seed: int,
) -> Sequence[ServedRequest]:
    """Return the requests of a trace, those that arrive at a rate, or those that are there at the
    begin."""
    from collector.workloads.request_traces import read_requests
    from collector.workloads.served_requests import ServedRequest, arriving_requests, at_rate

    if rate is not None and not 0 < rate < float("inf"):
        raise BadInput(f"--rate: expected a number above 0, got {rate}")
    count, prompt, produced = sizes
    if trace is not None:
        if prompt is not None or produced is not None:
            raise BadInput("--prompt, --output: a trace of --requests has its own")
        found = read_requests(trace, count)
        return found if rate is None else at_rate(found, rate)
    if rate is None and concurrency is None:
        raise BadInput("expected --requests, --rate or --concurrency")
    lengths = (prompt or _PROMPT, produced or _PRODUCED)
    if rate is None:
        return [ServedRequest(0, *lengths)] * (count or _COUNT)
    return arriving_requests(count or _COUNT, rate, *lengths, seed)


class CallTimes:
    """The times of the calls of an engine: of a version of the database, or of a device's rates."""

    def __init__(
        self,
        folder: ModelFolder,
        settings: EngineSettings,
        where: options.VersionOptions,
        device: str | None,
        grid: str,
        host: options.HostOptions,
    ) -> None:
        from collector.engine.engine_process import recording_of
        from collector.model.stack import backend_of
        from jobs.cli.look_up import messages_of
        from jobs.cli.step import Hosts, assumptions, known_version
        from jobs.planning.step_time import EAGER, GRAPH, pass_timer

        host.check()
        version, stack = known_version(where, device)
        self.place = version.path if version else stack.device
        self._recording = recording_of(folder, settings)
        self._backend = backend_of(stack.device)
        self._collectives = messages_of(grid)
        self._hosts: Hosts | None = None if host.host_us else Hosts(where, host.host)
        self._timer: PassTimer = pass_timer(
            version,
            stack,
            assumptions(host),
            lambda _: self._costs(self._mode),  # the pass of a call does not show it
        )
        self._mode = EAGER
        self._step_mode = GRAPH if settings.graph else EAGER
        self._run: int | None = None  # before the load is served, calls take no time

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

        costs = self._costs(EAGER)
        return f"measured, {costs}" if costs else "assumed"

    @cache  # noqa: B019  one object lives as long as the command
    def _costs(self, mode: str) -> HostCosts | None:
        if self._hosts is None:
            return None
        one = self._recording
        return self._hosts.costs(one.model, one.release, one.layout, mode)

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
        tables = launches_of(self._recording, one, self._collectives, self._backend)
        return served_call(self._timer.of_recording(one, tables))


def _shares(run: Served) -> Mapping[str, float]:
    """Return the share of the device's time by the source of durations."""
    from jobs.planning.served_calls import DEVICE_SOURCES

    whole = fsum(run.device_ns) or 1.0
    return {name: ns / whole for name, ns in zip(DEVICE_SOURCES, run.device_ns, strict=False) if ns}


def _is_known(shares: Mapping[str, float]) -> bool:
    """Return whether the database has the durations of almost all of the device's time."""
    from collector.report.model_pages import BETWEEN, EXACT, IMPORTED

    known = fsum(shares.get(name, 0.0) for name in (EXACT, IMPORTED, BETWEEN))
    return known > 1 - _MOST_WITHOUT_DATA


def _ends(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the value of a quantity, and the ends of its range, from the three runs."""
    return values[0], min(values), max(values)


def _metrics(runs: Sequence[ServingTimes]) -> Iterator[tuple[str, str, tuple[float, float, float]]]:
    """Yield the metrics with their ends: TTFT and TPOT in ms, tokens per second."""
    from collector.quality.statistics import percentile

    for metric, name in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
        ordered = [sorted(getattr(run, name)) for run in runs]
        if not ordered[0]:  # no request has a second token
            continue
        for share in _PERCENTILES:
            ends = _ends([percentile(values, share) for values in ordered])
            yield metric, f"p{round(100 * share)}", ends
    yield "throughput", "tokens_per_s", _ends([run.tokens_per_s for run in runs])


def _lines(
    runs: Sequence[ServingTimes], shares: Mapping[str, float], times: CallTimes
) -> Iterator[str]:
    is_known = _is_known(shares)
    first = runs[0]
    requests = counted(len(first.ttft_ms), "request")
    yield f"served      {requests}, {first.tokens:,} tokens in {time_text(first.duration_s * 1e6)}"
    yield f"version     {times.place}"
    yield f"host        {times.host}"
    for metric, name, (value, low, high) in _metrics(runs):
        is_rate = metric == "throughput"
        shown = [f"{x:,.1f}" if is_rate else time_text(x * 1000) for x in (value, low, high)]
        text = f"{shown[0]} ({shown[1]} to {shown[2]})" if is_known else " to ".join(shown[1:])
        yield f"{metric:<11} {text}{' tokens/s' if is_rate else f', {name}'}"
    parts = ", ".join(f"{percent(share)} {name}" for name, share in shares.items())
    yield f"device      its time is {parts}"
    if not is_known:
        yield "range       too few durations are known for a value: see `opmeter step --misses`"


def _as_json(
    runs: Sequence[ServingTimes], shares: Mapping[str, float], times: CallTimes
) -> dict[str, Any]:
    is_known = _is_known(shares)
    return {
        "version": times.place,
        "host": times.host,
        "requests": len(runs[0].ttft_ms),
        "tokens": runs[0].tokens,
        "duration_s": runs[0].duration_s,
        "metrics": [
            {
                "metric": metric if metric == "throughput" else f"{metric}_ms",
                "of": name,
                "value": value if is_known else None,
                "low": low,
                "high": high,
            }
            for metric, name, (value, low, high) in _metrics(runs)
        ],
        "device_time_by_source": dict(shares),
    }
