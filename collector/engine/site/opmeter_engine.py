"""`python opmeter_engine.py FOLDER`: runs passes of a model in vLLM's engine.

`request.json` of the folder:

    engine    options of vllm.LLM
    flags     further ones, as flags of `vllm serve`
    sampling  options of vllm.SamplingParams, instead of those of the model
    passes    [{"phase", "requests", "queries", "keys", "prompts"}]: requests of a pass, and of each
              its new tokens and its tokens in total; `prompts` is the same without a phase, or null
    has_chosen_blocks  whether the number of blocks of the cache is one that the user chose
    has_all_graphs     whether all sizes of graphs are captured, not only those of the passes
    timed     repetitions of a decode whose host time is measured: {"warm", "passes"}, or null
    served    requests that are served in virtual time instead of passes: [[arrival in ns, tokens of
              the prompt, tokens that are produced], ...] in the order of their arrivals, or null
    concurrency  how many of them at once at most; 0 for all. Further ones are sent when one ends
    accepted  of served requests: the share of their drafted tokens that are accepted
    runs      how often they are served

The engine writes to `result.json`, for each pass, the number of its step in the log of calls and
the tokens of its requests; and the settings that it used. Or `error`: what it refused. Then each
line of its input is further passes, with a `result-N.json` of their own. When a file is written,
its name is a line of the output; what the engine itself prints goes to the standard error. Of a
timed decode, its result has the numbers of its steps after the warm ones, and for each the readings
of the host at its begin and at that of the next step. Of served requests, it has for each run when
each was sent and the times of its tokens, in ns since the begin, and the time of the device by
source.
"""

import argparse
import faulthandler
import json
import os
import signal
import sys
import traceback
from importlib.metadata import version
from math import ceil
from pathlib import Path

_MOST_ATTEMPTS = 4
_WARM_TOKENS = 3
_STEPS_IN_FLIGHT = 2  # of an engine that schedules before it has the tokens of the last step
_LONGEST_REASON = 300  # characters
_FIXED = ("model", "distributed_executor_backend", "enforce_eager", "load_format")
_PACKAGES = ("vllm", "vllm_ascend", "transformers")
_added = []  # lengths of all requests so far, whose number names the next one


def main(folder):
    """Run the engine of a folder."""
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    faulthandler.enable()
    # if memory is short, this process ends before others
    Path("/proc/self/oom_score_adj").write_text("1000")
    requested = json.loads((folder / "request.json").read_text())
    with os.fdopen(os.dup(1), "w") as names:
        os.dup2(2, 1)
        try:
            for number, found in enumerate(_run(requested)):
                _answer(folder, names, number, found)
        except Exception as error:  # the engine's own errors have no common class
            traceback.print_exc()
            _answer(folder, names, 0, {"error": _described(error)})


def _answer(folder, names, number, found):
    """Write a result, and its name."""
    name = f"result-{number}.json" if number else "result.json"
    (folder / name).write_text(json.dumps(found))
    print(name, file=names, flush=True)


def _run(request):
    """Yield the results of passes: of those of a request, then of each line of the input."""
    import opmeter_hooks
    from vllm import LLM

    options = _options(request["flags"])
    if (more := options.get("max_num_seqs", 0) / request["engine"]["max_num_seqs"]) > 1:
        request["engine"]["num_gpu_blocks_override"] = ceil(
            more * request["engine"]["num_gpu_blocks_override"]
        )
    request["engine"] |= options
    opmeter_hooks.HAS_CHOSEN_BLOCKS = (
        request["has_chosen_blocks"] or "num_gpu_blocks_override" in options
    )
    has_drafts = "speculative_config" in request["engine"]  # which have graphs of their own
    if not (has_drafts or request["has_all_graphs"]):
        groups = [decoding + prompts for decoding, prompts in map(_groups, request["passes"])]
        opmeter_hooks.TOKENS.update(sum(new for new, _ in group) for group in groups)
    llm = LLM(**request["engine"])
    _check(llm.llm_engine.vllm_config)
    sampling = _sampling(llm) | request["sampling"]
    if request["served"]:
        found = list(_runs(llm, request, sampling))
        yield {"served": found, "settings": _settings(llm) | {"sampling": sampling}}
        return
    if timed := request["timed"]:
        passes = [_timed(llm, one, sampling, timed) for one in request["passes"]]
    else:
        passes = [_pass(llm, one, sampling) for one in request["passes"]]
    yield {"passes": passes, "settings": _settings(llm) | {"sampling": sampling}}
    for line in sys.stdin:
        found = []
        for one in json.loads(line):
            try:
                found.append(_pass(llm, one, sampling))
            except Exception as error:  # of this pass: others may run
                traceback.print_exc()
                found.append({"error": _described(error)})
        yield {"passes": found}


def _options(flags):
    """Return the options of vllm.LLM that flags of `vllm serve` are, as its own parser reads them.
    Raises _Refused for others, and for those that are not free here."""
    if not flags:
        return {}
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def refuse(message):
        raise _Refused(f"vllm {version('vllm')} refuses these flags: {message}")

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.error = refuse
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # what is not given is not an option
    found = vars(parser.parse_args(flags))
    if fixed := [name for name in found if name in _FIXED or "parallel" in name]:
        raise _Refused(f"{', '.join(fixed)}: options of opmeter say this, --layout and --graph")
    return found


def _sampling(llm):
    """Return the sampling of the model's generation_config.json, which a server uses."""
    found = llm.llm_engine.vllm_config.model_config.get_diff_sampling_param()
    found.pop("max_tokens", None)
    return found


class _Refused(Exception):
    """What this program refuses itself."""


def _check(config):
    """Raise _Refused for data parallel groups that do not depend on each other."""
    if config.parallel_config.data_parallel_size > 1 and not config.model_config.get_num_experts():
        raise _Refused(
            "--layout: expected dp=1 of a model without experts: its data parallel groups are "
            "independent engines"
        )


def _pass(llm, requested, sampling):
    """Run a pass until its requests have the requested tokens, and return its step.

    The first attempt creates what the engine keeps, such as masks. Prompts that were processed
    before others have produced more tokens than these, so that later attempts shorten them."""
    decoding, prompts = _groups(requested)
    lengths = [keys - queries for queries, keys in decoding]
    sizes = _batches(llm, lengths)
    for attempt in range(_MOST_ATTEMPTS):
        number, tokens = _step(llm, lengths, sizes, decoding, prompts, sampling)
        if attempt and sorted(tokens) == sorted(decoding + prompts):
            break
        if decoding:
            produced = [keys for new, keys in tokens if (new, keys) not in prompts]
            expected = decoding[0][1]
            lengths = [max(1, n - (k - expected)) for n, k in zip(lengths, produced, strict=True)]
    return {"step": number, "tokens": tokens}


def _timed(llm, requested, sampling, timed):
    """Repeat a decode, each time with one more token of each request, and return its steps."""
    from opmeter_hooks import READINGS, STEPS
    from opmeter_launches import record_named

    decoding, _ = _groups(requested)
    engine, first, count = llm.llm_engine, len(STEPS), timed["warm"] + timed["passes"]
    expected = [new for new, _ in decoding]
    names = [_add(engine, keys - new, 1 << 20, sampling) for new, keys in decoding]
    found = []
    while len(found) <= count and engine.has_unfinished_requests():  # one more, as their end
        engine.step()
        steps = range(first, len(STEPS))
        found = [n for n in steps if [new for new, _ in STEPS[n]] == expected]
    engine.abort_request(names)
    record_named("MARK", "end", len(STEPS))
    chosen = found[timed["warm"] : count]
    return {
        "steps": chosen,
        "tokens": STEPS[chosen[0]],
        "readings": [(READINGS[n], READINGS[n + 1]) for n in chosen],
    }


def _runs(llm, request, sampling):
    """Serve requests in virtual time several times, and yield what each run made of them.

    The first request is served alone before, and makes what the engine keeps, such as masks."""
    import opmeter_clock
    import opmeter_integers
    import torch

    requests, most = request["served"], request["concurrency"] or len(request["served"])
    opmeter_clock.install()
    _, prompt, produced = requests[0]
    _served(llm, [(0, prompt, min(produced, _WARM_TOKENS))], 1, sampling)
    for number in range(request["runs"]):
        torch.npu.synchronize()  # a step for drafts may be left of requests that have ended
        opmeter_clock.begin_run(number)
        opmeter_integers.begin_drafts(request["accepted"])
        begins, times = _served(llm, requests, most, sampling)
        opmeter_clock.end_run()
        yield {"begins_ns": begins, "tokens_ns": times, "device_ns": opmeter_clock.device_ns()}


def _served(llm, requests, most, sampling):
    """Serve requests, at most so many at once, and return when each of them was sent, and when each
    of its tokens was there."""
    import opmeter_clock

    engine = llm.llm_engine
    begin_ns = opmeter_clock.now_ns()
    waiting, begins, times = list(requests), [], {}
    free = [0] * most  # since when others may be sent, the earliest first
    while waiting or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            opmeter_clock.wait_until(begin_ns + waiting[0][0])
        now_ns = opmeter_clock.now_ns() - begin_ns
        while waiting and free and waiting[0][0] <= now_ns:
            arrival_ns, prompt, produced = waiting.pop(0)
            begins.append(max(arrival_ns, free.pop(0)))
            arrived = (begin_ns + begins[-1]) / 1e9
            times[_add(engine, prompt, produced, sampling, arrival_time=arrived)] = []
        for output in engine.step():
            seen, ns = times[output.request_id], opmeter_clock.now_ns() - begin_ns
            seen += [ns] * (len(output.outputs[0].token_ids) - len(seen))
            if output.finished:
                free.append(ns)
    return begins, list(times.values())


def _groups(requested):
    """Return (new tokens, tokens in total) of each request that decodes, and of each prompt."""

    def tokens(group):
        return [(group["queries"], group["keys"])] * group["requests"] if group else []

    if requested["phase"] == "prefill":
        return [], tokens(requested)
    return tokens(requested), tokens(requested["prompts"])


def _batches(llm, lengths):
    """Return how many requests of these lengths are added before each step: as many as fill half of
    it. Else shorter prompts could be processed in another step, and attempts would not converge."""
    config = llm.llm_engine.engine_core.engine_core.scheduler.scheduler_config
    most, sizes, filled = config.max_num_batched_tokens // 2, [], 0
    for length in lengths:
        filled += length
        if not sizes or filled > most:
            sizes.append(0)
            filled = length
        sizes[-1] += 1
    return sizes


def _step(llm, lengths, sizes, decoding, prompts, sampling):
    """Return the step in which requests of these lengths decode while the last part of the prompts
    is processed, and its tokens. So many of the requests are added before each step."""
    from opmeter_hooks import STEPS
    from opmeter_launches import record_named

    first = len(STEPS)
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler.scheduler_config
    part, parts = _parts(prompts)
    steps = 3 + sum(lengths) // 1024 + len(sizes) + parts
    scheduler.long_prefill_token_threshold = 0 if decoding else part
    most = 1 + steps * max((queries for queries, _ in decoding), default=0)
    names, left, sizes = [], list(lengths), list(sizes)
    waiting, number = prompts, None
    while number is None and (left or waiting or engine.has_unfinished_requests()):
        if left:
            names += [_add(engine, length, most, sampling) for length in left[: sizes[0]]]
            del left[: sizes.pop(0)]
        last = STEPS[-1] if len(STEPS) > first else []
        if (
            waiting
            and not left
            and [new for new, _ in last] == [queries for queries, _ in decoding]
        ):
            scheduler.long_prefill_token_threshold = part
            names += [_add(engine, length, 1, sampling) for _, length in prompts]
            waiting = []
        engine.step()
        number = _number(first, decoding, prompts)
    for _ in range(_STEPS_IN_FLIGHT):
        if engine.has_unfinished_requests():
            engine.step()
    engine.abort_request(names)  # what they would decode next is not of this pass
    record_named("MARK", "end", len(STEPS))
    if number is None:
        shown = [[new for new, _ in step] for step in STEPS[first : first + 4]]
        expected = sorted(new for new, _ in decoding + prompts)
        raise RuntimeError(
            f"no step has requests of {expected} new tokens; the first ones have {shown}"
        )
    return number, STEPS[number]


def _number(first, decoding, prompts):
    """Return the first step that has the new tokens of these requests, and these prompts."""
    from opmeter_hooks import STEPS

    expected = sorted(new for new, _ in decoding + prompts)
    for number in range(first, len(STEPS)):
        tokens = STEPS[number]
        if sorted(new for new, _ in tokens) == expected and all(
            tokens.count(one) >= prompts.count(one) for one in prompts
        ):
            return number
    return None


def _parts(prompts):
    """Return the size of the parts into which prompts are cut, 0 for the engine's own, and their
    number."""
    if not prompts:
        return 0, 0
    new, length = prompts[0]
    return (0, 1) if length % new else (new if length > new else 0, length // new)


def _add(engine, length, most, sampling, **more):
    from vllm import SamplingParams

    _added.append(length)
    params = SamplingParams(max_tokens=most, ignore_eos=True, detokenize=False, **sampling)
    prompt = {"prompt_token_ids": [1 + i % 1000 for i in range(length)]}
    name = str(len(_added))
    engine.add_request(name, prompt, params, **more)
    return name


def _settings(llm):
    """Return the settings on which the calls of a pass depend."""
    from vllm_ascend import envs

    config = llm.llm_engine.vllm_config
    compilation = config.compilation_config
    return {
        "environment": {
            name: _plain(getattr(envs, name))
            for name in envs.env_variables
            if name.startswith(("VLLM_ASCEND", "USE_", "HCCL"))
        },
        "graph_mode": str(compilation.cudagraph_mode),
        "graph_sizes": list(compilation.cudagraph_capture_sizes or ()),
        "additional": _plain(config.additional_config),
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "block_size": config.cache_config.block_size,
    }


def _plain(value):
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _described(error):
    """Return the first cause of an error in a line: the package that raised it, and where."""
    if isinstance(error, _Refused):
        return str(error)
    while error.__cause__ is not None:
        error = error.__cause__
    name, place, source = "vllm", "", ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        package = next((one for one in _PACKAGES if f"/{one}/" in frame.filename), None)
        if package and frame.name != "__getattribute__":  # which reports what another one lacks
            path = "/".join(Path(frame.filename).parts[-3:])
            name, source = package, frame.line
            place = f" ({path}:{frame.lineno}: {frame.name})"
            break
    text = str(error)
    if hasattr(error, "errors"):  # of pydantic, whose text quotes all settings
        text = "\n".join(str(one["msg"]) for one in error.errors())
    lines = [line.strip() for line in text.splitlines()]
    reason = " ".join(filter(None, lines or [source]))[:_LONGEST_REASON]
    what = f"{type(error).__name__}: {reason}"
    return f"{name} {version(name)} refuses this model or setting: {what}{place}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an engine's own shutdown waits for devices
