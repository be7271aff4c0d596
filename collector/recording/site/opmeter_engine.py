"""`python opmeter_engine.py FOLDER...`: runs passes of a model in vLLM's engine.

Each folder has a cut of the model. Its engine is a process of its own, because an engine holds
global state; all are forks of this process, which has imported vLLM, the longer part of a start.
`request.json` of a folder:

    engine    options of vllm.LLM
    sampling  options of vllm.SamplingParams
    passes    [{"phase", "requests", "queries", "keys", "prompts"}]: requests of a pass, and of each
              its new tokens and its tokens in total; `prompts` is the same without a phase, or null

The engine writes its calls to `calls.log`, its output to `engine.txt`, and to `result.json`, for
each pass, the number of its step in the log and the tokens of its requests; and the settings that
it used. Or `error`: what it refused. Then, or without a result, no other one runs.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path

_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
_MOST_ATTEMPTS = 4
_STEPS_IN_FLIGHT = 2  # of an engine that schedules before it has the tokens of the last step
_LONGEST_REASON = 300  # characters
_added = []  # lengths of all requests so far, whose number names the next one


def main(folders):
    """Run the engine of each folder, and return the status of this process."""
    from vllm import LLM  # noqa: F401  imported once, for all forks

    for folder in map(Path, folders):
        engine = os.fork()
        if not engine:
            _run_in(folder)
        # what stops this process stops the engine, whose fault handler writes its stack
        signal.signal(signal.SIGABRT, lambda *_, pid=engine: os.kill(pid, signal.SIGABRT))
        code = os.waitstatus_to_exitcode(os.waitpid(engine, 0)[1])
        result = folder / "result.json"
        if not result.exists():
            return code if code > 0 else 128 - code
        if "error" in json.loads(result.read_text()):
            break
    return 0


def _run_in(folder):
    """Run the engine of a folder, and end this process."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    faulthandler.enable()
    os.chdir(folder)
    output = os.open("engine.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["FAKE_CANN_LOG"] = str(folder / "calls.log")
    ctypes.CDLL("libascendcl.so").opmeter_fake_cann_begin()  # opens this log
    # if memory is short, this process ends before others
    Path("/proc/self/oom_score_adj").write_text("1000")
    requested = json.loads(Path("request.json").read_text())
    try:
        found = _run(requested)
    except Exception as error:  # the engine's own errors have no common class
        traceback.print_exc()
        found = {"error": _described(error)}
    Path("result.json").write_text(json.dumps(found))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an engine's own shutdown waits for devices


def _run(request):
    from opmeter_hooks import TOKENS
    from vllm import LLM

    if "speculative_config" not in request["engine"]:  # drafts have graphs of their own
        groups = [decoding + prompts for decoding, prompts in map(_groups, request["passes"])]
        TOKENS.update(sum(new for new, _ in group) for group in groups)
    llm = LLM(**request["engine"])
    passes = [_pass(llm, one, request["sampling"]) for one in request["passes"]]
    return {"passes": passes, "settings": _settings(llm)}


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


def _add(engine, length, most, sampling):
    from vllm import SamplingParams

    _added.append(length)
    params = SamplingParams(max_tokens=most, ignore_eos=True, detokenize=False, **sampling)
    prompt = {"prompt_token_ids": [1 + i % 1000 for i in range(length)]}
    name = str(len(_added))
    engine.add_request(name, prompt, params)
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
    """Return the first cause of an error in a line, with the place in the engine where it was
    raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[-1]
    for one in reversed(frames):
        if "/vllm/" in one.filename or "/vllm_ascend/" in one.filename:
            frame = one
            break
    place = "/".join(Path(frame.filename).parts[-3:])
    lines = [line.strip() for line in str(error).splitlines()]
    reason = " ".join(filter(None, lines))[:_LONGEST_REASON]
    return f"{place}:{frame.lineno}: {frame.name}: {type(error).__name__}: {reason}"


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # nothing is left to free
