"""Runs a serving engine on the recording runtime, and makes a recording of its passes.

The engine is a process of its own: it holds global state, and its end is not clean on a runtime
that computes nothing.
"""

import json
import logging
import os
import re
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from collector.codec.canonical import json_object, readable_json
from collector.codec.errors import BadInput, OpmeterError
from collector.engine.build import LOG as CALLS_LOG
from collector.engine.build import build_runtime, environment, prepended
from collector.engine.durations import DURATIONS, Duration, durations_given
from collector.engine.environments import (
    ServingEnvironment,
    find_release,
    install_serving,
)
from collector.engine.model_folder import ModelFolder
from collector.engine.recorded_calls import PassTokens, read_step, recorded_pass
from collector.engine.refusals import advice
from collector.engine.wheel import cache
from collector.host.machine import this_cpu
from collector.workloads.recorded_step import RecordedPass, Recording
from collector.workloads.served_requests import ServedRequest

logger = logging.getLogger(__name__)

SITE = Path(__file__).parent / "site"
_PROGRAM = SITE / "opmeter_engine.py"
_SOCS = {"A2": "Ascend910B2", "A3": "Ascend910_9391"}
DEVICES = tuple(_SOCS)
_BATCHED_TOKENS = 8192
_SERVED_AT_ONCE = 256  # as vLLM has it
_PAGE = 128  # tokens of a block of the cache, as vLLM-Ascend chooses it
LOG = "calls.log"
_LIMIT_S, _ABORT_S = 1200, 30
_OF_ENGINE = re.compile("/vllm(_ascend)?/")  # in the path of a module
_HINT = "--logs DIR keeps its output"
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
# Of this process's environment: what would change launches without being recorded.
_NOT_INHERITED = ("PYTHON", "VLLM_", "ASCEND_", "HCCL_")
# A process that takes nothing from the network, and starts no other ones.
_SETTINGS = {
    "FAKE_NPU_MEMORY_GB": "1024",  # the weights of one rank need not fit: they are never touched
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DISABLE_COMPILE_CACHE": "1",  # its keys lack the variables of vllm_ascend
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TASK_QUEUE_ENABLE": "0",  # launches of Python and of C++ in their order
    "OMP_NUM_THREADS": "2",
    "OPMETER_ENGINE": "1",
}


class GraphMode(StrEnum):
    """What the engine captures: whole passes that decode, or the parts between attention."""

    FULL_DECODE = "full-decode"
    PIECEWISE = "piecewise"


_CONTEXT = {"pcp": "prefill_context_parallel_size", "dcp": "decode_context_parallel_size"}
_STAGES = "pipeline_parallel_size"
_GRAPH_MODES = {GraphMode.FULL_DECODE: "FULL_DECODE_ONLY", GraphMode.PIECEWISE: "PIECEWISE"}


class EngineFailed(OpmeterError):
    """The engine refused the model or a setting, or its process ended."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What to record.

    speculative  tokens that the layers of MTP draft in each pass, 0 without them
    accepted     the share of them that are accepted, where requests are served
    environment  environment variables of the engine, such as VLLM_ASCEND_ENABLE_NZ
    options      further options of vllm.LLM
    flags        further ones of them, as flags of `vllm serve`
    sampling     options of vllm.SamplingParams
    has_all_graphs  whether graphs of all sizes are captured, not only those of the passes"""

    release: str
    passes: tuple[PassTokens, ...]
    device: str = "A3"
    tp: int = 1
    dp: int = 1
    ep: int = 1
    speculative: int = 0
    accepted: float | None = None
    graph: GraphMode | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    has_all_graphs: bool = False

    @property
    def context(self) -> Mapping[str, int]:
        """Return the ranks that share the context of a request, of prompts and of decodes, where
        options of vllm.LLM say so."""
        sizes = {name: self.options.get(option) for name, option in _CONTEXT.items()}
        return {name: size for name, size in sizes.items() if type(size) is int and size > 1}

    @property
    def ranks(self) -> int:
        return self.tp * self.dp * self.context.get("pcp", 1)  # dcp takes those of tp


@dataclass(frozen=True, slots=True)
class TimedDecode:
    """How often a decode is repeated whose host time is measured: `warm` passes, and those that are
    timed."""

    warm: int = 8
    passes: int = 40


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """The timed steps in the log of an engine, and its readings at their begin and at that of the
    next steps (`opmeter_hooks._reading`)."""

    steps: tuple[int, ...]
    readings: tuple[tuple[Sequence[int], Sequence[int]], ...]


@dataclass(frozen=True, slots=True)
class Served:
    """A run of requests: when each was sent and when each of its tokens was there, in ns since the
    begin, and the time of the device by the source of durations, in ns."""

    begins_ns: Sequence[int]
    tokens_ns: Sequence[Sequence[int]]
    device_ns: Sequence[int]


def check_settings(settings: EngineSettings) -> None:
    """Raise BadInput for settings that cannot be recorded."""
    if settings.ep not in (1, settings.ranks):
        known = " or ".join(dict.fromkeys(("ep=1", f"ep={settings.ranks}")))
        raise BadInput(f"--layout: expected {known}, got ep={settings.ep}")
    if (stages := settings.options.get(_STAGES, 1)) != 1:
        raise BadInput(
            f"--engine: {_STAGES}: expected 1, got {stages}: a recording is of one rank, and the "
            "stages of a pipeline launch different layers"
        )


def check_served(settings: EngineSettings) -> None:
    """Raise BadInput for settings with which requests cannot be served."""
    check_settings(settings)
    if settings.dp > 1:
        raise BadInput(
            f"--layout: expected dp=1, got dp={settings.dp}: groups of data parallel ranks have "
            "requests of their own"
        )
    if (settings.speculative > 0) != (settings.accepted is not None):
        raise BadInput(
            "--speculative, --accepted: expected both or none: no data has the share of drafted "
            "tokens that are accepted"
        )


def recording_of(
    model: ModelFolder, settings: EngineSettings, passes: Sequence[RecordedPass] = ()
) -> Recording:
    """Return a recording of a model with these passes, without what its engine reports."""
    return Recording(
        model=model.name,
        config_sha256=model.sha256,
        release=settings.release,
        layout={"tp": settings.tp, "dp": settings.dp, "ep": settings.ep, **settings.context},
        device=settings.device,
        environment=settings.environment,
        settings={},
        wheels={},
        host=this_cpu().model,
        passes=tuple(passes),
    )


def record_model(model: ModelFolder, settings: EngineSettings, work: Path) -> Recording:
    """Return the recording of a model; logs and files of the engine are left in `work`.

    Raises NoRecordingRuntime, EngineFailed or BadInput."""
    with running_engine(model, settings, work) as engine:
        return engine.recording


class RunningEngine:
    """An engine that has run the passes of its settings, and can run further ones.

    recording  of these passes"""

    def __init__(
        self,
        model: ModelFolder,
        settings: EngineSettings,
        serving: ServingEnvironment,
        work: Path,
        process: subprocess.Popen[bytes],
        log: TextIO,
    ) -> None:
        self._model, self._release, self._work = model, settings.release, work
        self._process, self._log = process, log
        found = self._result()
        passes = [
            self._recorded(tokens, one)
            for tokens, one in zip(settings.passes, found["passes"], strict=True)
        ]
        self.recording = replace(
            recording_of(model, settings, passes),
            settings=found["settings"],
            wheels=serving.wheels(),
        )

    def record(self, passes: Sequence[PassTokens]) -> Sequence[RecordedPass | EngineFailed]:
        """Return further passes, with no more tokens and requests than those of the settings, or
        why the engine cannot run one. Raises EngineFailed where the engine ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([asdict(one) for one in passes]).encode() + b"\n")
        self._process.stdin.flush()
        found: list[RecordedPass | EngineFailed] = []
        for tokens, one in zip(passes, self._result()["passes"], strict=True):
            try:
                found.append(self._recorded(tokens, one))
            except EngineFailed as error:
                found.append(error)
        return found

    def _result(self) -> Mapping[str, Any]:
        return _next_result(self._process, self._work, self._model, self._release)

    def _recorded(self, requested: PassTokens, result: Mapping[str, Any]) -> RecordedPass:
        if "error" in result:
            raise EngineFailed(result["error"])
        tokens = _tokens(requested, result["tokens"])
        return recorded_pass(tokens, read_step(self._log, result["step"]))


def run_timed(
    model: ModelFolder, settings: EngineSettings, timed: TimedDecode, task_queue: int, work: Path
) -> TimedSteps:
    """Repeat a decode in an engine that does nothing but record. Raises as `record_model` does."""
    check_settings(settings)
    serving = install_serving(settings.release)
    more = {"OPMETER_HOST": "1", "OPMETER_INTEGERS": "0", "TASK_QUEUE_ENABLE": str(task_queue)}
    with _started(model, settings, serving, work, timed, more=more) as (process, _):
        (found,) = _next_result(process, work, model, settings.release)["passes"]
    _tokens(settings.passes[0], found["tokens"], any_keys=True)
    return TimedSteps(tuple(found["steps"]), tuple(map(tuple, found["readings"])))


def run_served(
    model: ModelFolder,
    settings: EngineSettings,
    requests: Sequence[ServedRequest],
    duration_of: Callable[[str], Duration],
    work: Path,
    *,
    count: Callable[[str, int], None] | None = None,
    concurrency: int = 0,
    runs: int = 1,
    has_own_host: bool = False,
) -> Sequence[Served]:
    """Serve requests, in the order of their arrivals, in virtual time (`durations.py`), and return
    what each run made of them. `settings` has no passes. Of several ranks the first runs; the
    others are assumed to come to each message when it does.

    count         gets how often a call ran in each run
    concurrency   requests at once at most: others are sent when one ends; 0 for all
    has_own_host  the time of a thread is what it computes and `Duration.host_ns`, not the latter
                  alone, with which equal calls give equal times

    Raises as `record_model` does, and what `duration_of` raises."""
    check_served(settings)
    serving = install_serving(settings.release)
    # the host reads how many tokens go to each rank, and which were accepted
    has_integers = settings.ep > 1 or settings.speculative > 0
    more = {
        "OPMETER_SERVED": "1",
        "OPMETER_INTEGERS": str(int(has_integers)),
        "FAKE_NPU_ORDER": str(int(has_own_host)),
        CALLS_LOG: "",
    }
    with durations_given(duration_of, count) as socket:
        more[DURATIONS] = str(socket)
        load = (requests, concurrency, runs)
        with _started(model, settings, serving, work, served=load, more=more) as (process, _):
            found = _next_result(process, work, model, settings.release)
    return [Served(**one) for one in found["served"]]


@contextmanager
def running_engine(
    model: ModelFolder, settings: EngineSettings, work: Path
) -> Iterator[RunningEngine]:
    """Run an engine until the block ends; its logs and files are left in `work`.

    Raises NoRecordingRuntime, EngineFailed or BadInput."""
    check_settings(settings)
    serving = install_serving(settings.release)
    with _started(model, settings, serving, work) as (process, log):
        yield RunningEngine(model, settings, serving, work, process, log)


@contextmanager
def _started(
    model: ModelFolder,
    settings: EngineSettings,
    serving: ServingEnvironment,
    work: Path,
    timed: TimedDecode | None = None,
    served: tuple[Sequence[ServedRequest], int, int] = ((), 0, 0),
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[subprocess.Popen[bytes], TextIO]]:
    """Start the process of an engine, with its log, and end it with the block."""
    folder = work / "model"
    folder.mkdir(parents=True)
    for name, data in model.files.items():
        (folder / name).write_bytes(data)
    request = _request(model, folder, settings, timed, served)
    (work / "request.json").write_bytes(readable_json(request))
    logger.info("running %s", model.name)
    begun = time.monotonic()
    env = {**engine_environment(settings, serving, work / LOG), "FAKE_NPU_ORDER": "1", **more}
    words = list(map(str, (serving.python, _PROGRAM, work.absolute())))
    pipe = subprocess.PIPE
    (work / LOG).touch()
    with (
        (work / LOG).open() as log,  # is read on, step by step
        (work / "engine.txt").open("wb") as output,
        subprocess.Popen(words, cwd=work, env=env, stdin=pipe, stdout=pipe, stderr=output) as it,
    ):
        try:
            yield it, log
        finally:
            assert it.stdin is not None
            it.stdin.close()
            _waited(it, _ABORT_S)
    memory_gb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6  # of all so far
    took_s = time.monotonic() - begun
    logger.info("ran %s in %.0f s with at most %.1f GB", model.name, took_s, memory_gb)


def _next_result(
    process: subprocess.Popen[bytes], work: Path, model: ModelFolder, release: str
) -> Mapping[str, Any]:
    """Return the next result of an engine. Raises EngineFailed where it refused or ended."""
    output = process.stdout
    assert output is not None
    is_there, _, _ = select.select([output], [], [], _LIMIT_S)
    if not (name := output.readline().decode().strip() if is_there else ""):
        status = _waited(process, _ABORT_S if is_there else 0)
        reason = _last_words((work / "engine.txt").read_text(errors="replace"), work / LOG)
        raise EngineFailed(f"the engine ended, {status}: {reason}; {_HINT}")
    path = work / name
    found = json_object(path.read_bytes(), what="the result of an engine", key=str(path))
    if "error" in found:
        hint = advice(found["error"], release, model.model_type, has_code=model.has_code)
        raise EngineFailed(f"{found['error']}; {hint}")
    return found


def _waited(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Return how engines ended. At the limit one is aborted: then its stack is in the output."""
    try:
        return f"status {process.wait(limit_s)}"
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
    try:
        process.wait(_ABORT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    return f"not within {limit_s:.0f} s"


def _last_words(output: str, log: Path) -> str:
    """Return where an engine ended: the innermost function of the engine, if Python's fault handler
    listed the stack, and the last call that was recorded; otherwise the last line of its output."""
    _, fault, stack = output.rpartition("Fatal Python error: ")
    frames = _FRAME.findall(stack.partition("Current thread")[2])
    if not frames:
        return "".join(output.strip().splitlines()[-1:])
    path, line, function = next((one for one in frames if _OF_ENGINE.search(one[0])), frames[0])
    what = stack.partition("\n")[0]
    place = f"{'/'.join(Path(path).parts[-3:])}:{line}: {function}: {what}"
    *_, last = log.read_text().splitlines() or [""]
    return f"{place}, after the call {last.split(' ', 3)[-1].partition('(')[0]}"


def _tokens(
    requested: PassTokens, ran: Sequence[Sequence[int]], *, any_keys: bool = False
) -> PassTokens:
    """Return the tokens of a pass as it ran. Raises EngineFailed for another pass."""
    compared = 1 if any_keys else 2  # of the new tokens and all tokens of each request
    expected = sorted(one[:compared] for one in requested.each())
    if sorted(tuple(one[:compared]) for one in ran) != expected:
        shown = ", ".join(f"{new} of {keys}" for new, keys in ran[:4])
        raise EngineFailed(
            f"expected a {requested.phase} of {asdict(requested)}, the engine ran {shown}"
        )
    return requested


def _request(
    model: ModelFolder,
    folder: Path,
    settings: EngineSettings,
    timed: TimedDecode | None,
    served: tuple[Sequence[ServedRequest], int, int],
) -> Mapping[str, Any]:
    passes, more = settings.passes, timed.warm + timed.passes if timed else 0
    batched = max([_BATCHED_TOKENS, *(sum(new for new, _ in one.each()) for one in passes)])
    lengths = [keys for one in passes for _, keys in one.each()]
    requests, concurrency, runs = served
    lengths += [one.prompt + one.produced for one in requests]
    longest = max(lengths) + 64 + more
    most = max(len(one.each()) for one in passes) if passes else _SERVED_AT_ONCE
    engine = {
        "model": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "seed": 0,
        "max_model_len": longest,
        "max_num_batched_tokens": batched,
        "max_num_seqs": most,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        # the memory of the device does not decide how many requests fit
        "num_gpu_blocks_override": max(512, (most + 1) * (-(-longest // _PAGE) + 1)),
        "tensor_parallel_size": settings.tp,
        "data_parallel_size": settings.dp,
        "enable_expert_parallel": settings.ep > 1,
        "enforce_eager": not settings.graph,
        # passes of a model that reads images are those of text
        "limit_mm_per_prompt": {"image": 0, "video": 0},
    }
    if model.has_code:
        engine["trust_remote_code"] = True
    if model.is_quantised:
        engine["quantization"] = "ascend"
    if settings.graph:
        engine["compilation_config"] = {"cudagraph_mode": _GRAPH_MODES[settings.graph]}
    if settings.speculative:
        count = settings.speculative
        engine["speculative_config"] = {"method": "mtp", "num_speculative_tokens": count}
    if settings.ranks > 1:
        engine["distributed_executor_backend"] = "external_launcher"
    return {
        "engine": engine | dict(settings.options),
        "flags": list(settings.flags),
        "sampling": dict(settings.sampling),
        "has_chosen_blocks": "num_gpu_blocks_override" in settings.options,
        "has_all_graphs": settings.has_all_graphs,
        "passes": [asdict(one) for one in passes],
        "timed": asdict(timed) if timed else None,
        "served": [astuple(one) for one in requests] or None,
        "concurrency": concurrency,
        "accepted": 1.0 if settings.accepted is None else settings.accepted,
        "runs": runs,
    }


def engine_environment(
    settings: EngineSettings, serving: ServingEnvironment, log: Path
) -> Mapping[str, str]:
    """Return the environment of a process of the engine, which writes its launches to a log."""
    runtime = build_runtime(serving.site, torch=serving.torch)
    env = environment(runtime, devices=min(settings.ranks, 16), log=log)
    kept = {name: text for name, text in env.items() if not name.startswith(_NOT_INHERITED)}
    kept["PYTHONPATH"] = os.pathsep.join((str(serving.site), str(SITE)))
    kept["PATH"] = prepended(str(serving.python.parent), env, "PATH")
    # vLLM inspects the class of a model in another process, and caches the result under a name that
    # does not have the release
    kept |= _SETTINGS | {"VLLM_CACHE_ROOT": str(cache() / "vllm" / settings.release)}
    kept |= {"FAKE_NPU_SOC": _SOCS[settings.device], "OPMETER_DEVICE": settings.device}
    kept["OPMETER_CANN"] = find_release(settings.release).cann
    if settings.ranks > 1:  # rank 0 of a world whose other ranks do not exist
        kept |= {"OPMETER_ALONE": "1", "FAKE_NPU_ALONE": "1", "RANK": "0", "LOCAL_RANK": "0"}
        kept |= {"WORLD_SIZE": str(settings.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return kept | dict(settings.environment)


def read_environment(texts: Sequence[str]) -> Mapping[str, str]:
    """Return the variables of NAME=VALUE. Raises BadInput for another text."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadInput(f"--env: expected NAME=VALUE, got {text!r}")
        found[name] = value
    return found


def read_options(option: str, text: str) -> Mapping[str, Any]:
    """Return the members of a JSON object on a command line. Raises BadInput for another text."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise BadInput(f"{option}: expected a JSON object, got {text!r}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{option}: expected a JSON object, got {text!r}")
    return found
