"""`opmeter host`: what the calls of a host take in decodes of a model, measured without an NPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, time_text
from jobs.cli import options
from jobs.cli.terminal import print_json, print_table, say, stop_on_signals

if TYPE_CHECKING:
    from collector.database.host_sessions import HostDecode, HostSession
    from collector.engine.engine_process import EngineSettings, TimedDecode
    from collector.engine.model_folder import ModelFolder
    from jobs.planning.host_costs import HostCosts

_STOPPED = 3
_COLUMNS = ("mode", "call", "us", "95 %", "sessions", "warnings")
_SESSIONS, _PASSES = 5, 40


def host_command(
    model: options.EngineModelArgument,
    *,
    layout: options.EngineRanksOption = "",
    release: options.EngineReleaseOption = "vllm-ascend-0.18",
    generation: options.EngineGenerationOption = "A3",
    mode: Annotated[
        str,
        typer.Option(
            help="modes: eager, graph, fallback (decodes for which no graph was captured)"
        ),
    ] = "eager,graph",
    task_queue: Annotated[
        int, typer.Option(help="TASK_QUEUE_ENABLE of torch_npu", min=0, max=2)
    ] = 0,
    requests: Annotated[int, typer.Option(help="number of decoding requests", min=1)] = 1,
    keys: Annotated[
        int, typer.Option("--context", help="tokens of each request in total", min=2)
    ] = 512,
    passes: Annotated[
        int, typer.Option(help="timed passes of a session", min=3, max=1000)
    ] = _PASSES,
    sessions: Annotated[
        int, typer.Option(help="sessions of each mode: starts of the engine", min=1, max=100)
    ] = _SESSIONS,
    env: options.EngineVariablesOption = None,
    logs: options.EngineLogsOption = None,
    root: options.RootOption = None,
    single_writer: options.SingleWriterOption = False,
    as_json: options.JsonOption = False,
) -> int:
    """Measure what each call of the host takes in decodes of a model, without an NPU.

    vLLM and vLLM-Ascend run on a runtime that computes nothing, so that the processor time of their
    threads is that of the host: without CANN and its driver, and without the time of this tool. The
    sessions of all modes take turns, and each is a start of the engine of one to three minutes.
    Every session is a new version of the database, where `opmeter step` finds the times. x86-64
    with gcc only; the first use of a release downloads its wheels.

    \b
    Examples:
      opmeter host qwen3-32b --layout tp=4
      opmeter host qwen3-32b --layout tp=4 --requests 16 --mode fallback --sessions 3
    """
    from collector.codec.scratch import scratch_folder
    from collector.database.host_sessions import HostDecode
    from collector.engine.engine_process import (
        EngineSettings,
        TimedDecode,
        check_settings,
        read_environment,
    )
    from collector.engine.host_time import HostMode, settings_of
    from collector.engine.model_folder import find_model
    from collector.engine.recorded_calls import PassTokens
    from jobs.cli.recordings import check_engine, engine_ranks
    from jobs.planning.host_costs import ranks_text

    check_engine(generation, logs)
    modes = mode.split(",")
    if not set(modes) <= set(HostMode):
        raise BadInput(f"--mode: expected {', '.join(HostMode)}, got {mode!r}")
    ranks = engine_ranks(layout)
    settings = EngineSettings(
        release=release,
        passes=(PassTokens("decode", requests, 1, keys),),
        device=generation,
        tp=ranks.tp,
        dp=ranks.dp,
        ep=ranks.ep,
        environment=read_environment(env or ()),
    )
    check_settings(settings)
    folder = find_model(model)
    sizes = ranks_text({"tp": ranks.tp, "dp": ranks.dp, "ep": ranks.ep})
    decodes = [HostDecode(folder.name, sizes, one, task_queue) for one in dict.fromkeys(modes)]
    for one in decodes:
        settings_of(settings, HostMode(one.mode))  # before any session
    stop = stop_on_signals(lambda text: say(text, err=True))
    measured: list[HostSession] = []
    with scratch_folder("host") as scratch:
        work = _Sessions(folder, settings, TimedDecode(passes=passes), (logs or scratch).absolute())
        for number in range(sessions):
            for one in decodes:
                if stop.is_set():
                    break
                measured.append(work.measure(one, number + 1))
                _publish(measured[-1], root, single_writer=single_writer)
    if not measured:
        return _STOPPED
    _print(measured, decodes, root, as_json=as_json)
    return _STOPPED if stop.is_set() else 0


class _Sessions:
    """Starts of an engine, each with a folder of its own below `work`."""

    def __init__(
        self, model: ModelFolder, settings: EngineSettings, timed: TimedDecode, work: Path
    ) -> None:
        self._model, self._settings, self._timed, self._work = model, settings, timed, work

    def measure(self, decode: HostDecode, number: int) -> HostSession:
        """Return a session, and print its median time of a pass."""
        from statistics import median

        from collector.database.host_sessions import PASS
        from collector.engine.host_time import measure_host

        place = self._work / f"{decode.mode}-{number}"
        found = measure_host(self._model, self._settings, decode, self._timed, place)
        whole = time_text(median(found.us[PASS]))
        say(f"session {number} of {decode.mode}: {whole} a pass, {found.disturbed}", err=True)
        return found


def _publish(session: HostSession, root: str | None, *, single_writer: bool) -> None:
    """Store a session as a new version of the database."""
    from platform import node

    from jobs.cli.imports import publish_results

    merged = publish_results([session], root, single_writer=single_writer, node=node())
    for damage in merged.damaged:
        say(str(damage), err=True)


def _print(
    sessions: list[HostSession], decodes: list[HostDecode], root: str | None, *, as_json: bool
) -> None:
    from collector.store.opening import DEFAULT_ROOT
    from jobs.cli.opening import open_database
    from jobs.planning.host_costs import HostCosts
    from opmeter.database import database_now

    path = sessions[0].stack.version_path
    directory = database_now(open_database(root or DEFAULT_ROOT)).directory(path)
    rows = [
        row
        for decode in decodes
        for row in _rows(
            HostCosts(directory, decode),
            dict.fromkeys(name for one in sessions if one.decode == decode for name in one.us),
        )
    ]
    if as_json:
        print_json({"directory": path, "calls": [one._asdict() for one in rows]})
        return
    say(f"host        {path}: {counted(len(sessions), 'session')}")
    cells = [
        (
            *(row.mode, row.call, time_text(row.value_us)),
            f"{time_text(row.low_us)} to {time_text(row.high_us)}",
            *(str(row.sessions), ", ".join(row.warnings)),
        )
        for row in rows
    ]
    print_table(_COLUMNS, cells)


class _Row(NamedTuple):
    """A call of the host in a mode."""

    mode: str
    call: str
    value_us: float
    low_us: float
    high_us: float
    sessions: int
    warnings: tuple[str, ...]


def _rows(costs: HostCosts, names: Iterable[str]) -> Iterator[_Row]:
    """Yield the measured calls of a mode, those of all calls first, then the longest first."""
    from collector.database.host_sessions import WHOLE
    from opmeter.answers import Channel

    found = [(name, costs.answer(name)) for name in names]
    known = [one for one in found if one[1].channel is not Channel.MISS]
    for name, answer in sorted(known, key=lambda one: (one[0] not in WHOLE, -one[1].value_us)):
        ends = (answer.value_us, answer.low_us, answer.high_us)
        yield _Row(costs.decode.mode, name, *ends, answer.support, answer.warnings)
