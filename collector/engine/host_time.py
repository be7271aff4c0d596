"""Measures the time of a host in decodes: the engine as it is served, on a CANN that computes
nothing, so that its processor time is what the host computes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import fsum
from pathlib import Path

from collector.codec.errors import BadInput
from collector.database.host_sessions import (
    BETWEEN,
    LAUNCH,
    MAIN_THREAD,
    PASS,
    HostDecode,
    HostSession,
    host_stack,
)
from collector.engine.engine_process import LOG, EngineSettings, GraphMode, TimedDecode, run_timed
from collector.engine.environments import STACKS, find_release
from collector.engine.model_folder import ModelFolder
from collector.engine.recorded_calls import read_steps
from collector.environment import utc_now
from collector.host.machine import this_cpu
from collector.quality.disturbances import Lap, Watch

_LEAST_US = 0.001  # a pass may have a call for which the clock shows no time
_HOST, _REPLAY, _REPLAY_END = "HOST", "replay", "replay_end"
_ISSUED = ("ACLNN", "ACLOP", "ATB", "CUSTOM", "HCCL")
_NO_GRAPH_OF_THESE = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1]}


class HostMode(StrEnum):
    """How decodes run: eager, in captured graphs, or with graphs of other sizes alone."""

    EAGER = "eager"
    GRAPH = "graph"
    FALLBACK = "fallback"


def settings_of(settings: EngineSettings, mode: HostMode) -> EngineSettings:
    """Return the settings of the engine for a mode. Raises BadInput for one request as a
    fallback, for which there is a graph."""
    if mode is HostMode.EAGER:
        return settings
    if mode is HostMode.GRAPH:
        return replace(settings, graph=GraphMode.FULL_DECODE)
    (one,) = settings.passes
    if one.requests == 1:
        raise BadInput("--requests: expected at least 2 for mode fallback, got 1")
    options = {**settings.options, "compilation_config": _NO_GRAPH_OF_THESE}
    return replace(settings, graph=GraphMode.FULL_DECODE, options=options)


def measure_host(
    model: ModelFolder,
    settings: EngineSettings,
    decode: HostDecode,
    timed: TimedDecode,
    work: Path,
) -> HostSession:
    """Run one session, in which a decode is repeated. Its files are left in `work`.

    Raises NoRecordingRuntime, EngineFailed or BadInput."""
    begun = utc_now()
    found = run_timed(
        model, settings_of(settings, HostMode(decode.mode)), timed, decode.task_queue, work
    )
    with (work / LOG).open() as log:
        us = times_of_steps(log, found.steps)
    pairs = [(_Reading(*begin), _Reading(*end)) for begin, end in found.readings]
    us[MAIN_THREAD] = [(end.computed_ns - begin.computed_ns) / 1e3 for begin, end in pairs]
    laps = [
        Lap(1, (end.at_ns - begin.at_ns) / 1e3, (end.waited_ns - begin.waited_ns) / 1e3)
        for begin, end in pairs
    ]
    stolen_ns = pairs[-1][1].stolen_ns - pairs[0][0].stolen_ns
    release = find_release(settings.release)
    wheels = STACKS[release.vllm_ascend]
    versions = {"torch": wheels.torch, "torch_npu": wheels.torch_npu, "cann": release.cann}
    (one,) = settings.passes
    return HostSession(
        stack=host_stack(this_cpu(), vllm=release.vllm_ascend, **versions),
        decode=decode,
        load=f"decode of {one.requests} requests of {one.keys} tokens",
        us=us,
        watch=Watch(tuple(laps), stolen_us=stolen_ns / 1e3),
        started_at=begun.isoformat(timespec="seconds"),
        ended_at=utc_now().isoformat(timespec="seconds"),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the engine reads of its host at the begin of a step, in ns: the time of day, what the
    main thread computed and waited for a core, and what the host of a virtual machine took."""

    at_ns: int
    computed_ns: int
    waited_ns: int
    stolen_ns: int


def times_of_steps(log: Iterable[str], steps: Sequence[int]) -> dict[str, list[float]]:
    """Return by name the mean time of a call in each step that has such calls, in us; and the time
    of all calls, of each launch, and between the last call and the next step.

    Raises OpmeterError for a log that lacks a step."""
    found: dict[str, list[float]] = defaultdict(list)
    for calls, between_ns in read_steps(log, steps):
        times: dict[str, list[int]] = defaultdict(list)
        launches, is_inside = 0, False
        for call in calls:
            kind, _, rest = call.text.partition(" ")
            name = rest.partition("(")[0]
            is_inside = is_inside and name != _REPLAY_END
            if not is_inside and name != _REPLAY_END:
                times[name].append(call.host_ns)
                launches += kind in _ISSUED
            is_inside = is_inside or (kind == _HOST and name == _REPLAY)
        for name, each_ns in times.items():
            found[name].append(max(_LEAST_US, fsum(each_ns) / len(each_ns) / 1e3))
        whole_us = fsum(map(fsum, times.values())) / 1e3
        found[PASS].append(whole_us)
        found[LAUNCH].append(whole_us / max(1, launches))
        found[BETWEEN].append(max(_LEAST_US, between_ns / 1e3))
    return dict(found)
