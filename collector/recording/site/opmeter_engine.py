"""`python opmeter_engine.py REQUEST RESULT`: runs passes of a model in vLLM's engine.

REQUEST is JSON:

    engine    options of vllm.LLM
    sampling  options of vllm.SamplingParams
    passes    [{"phase", "requests", "queries", "keys"}]: requests of a pass, and of each its new
              tokens and its tokens in total

RESULT gets JSON: for each pass the number of its step in the log and the tokens of its requests;
and the settings that the engine used. Or `error`: what the engine refused.
"""

import json
import os
import sys
import traceback
from pathlib import Path

_MOST_ATTEMPTS = 4


def main(request, result):
    # if memory is short, this process ends before others
    Path("/proc/self/oom_score_adj").write_text("1000")
    requested = json.loads(Path(request).read_text())
    try:
        found = _run(requested)
    except Exception as error:  # the engine's own errors have no common class
        traceback.print_exc()
        found = {"error": _described(error)}
    Path(result).write_text(json.dumps(found))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an engine's own shutdown waits for devices


def _run(request):
    from vllm import LLM

    llm = LLM(**request["engine"])
    passes = [_pass(llm, one, request["sampling"]) for one in request["passes"]]
    return {"passes": passes, "settings": _settings(llm)}


def _pass(llm, requested, sampling):
    """Run a pass until its requests have the requested tokens, and return its step.

    The first attempt creates what the engine keeps, such as masks. Prompts that were processed
    before others have produced more tokens than these, so that later attempts shorten them."""
    is_decode = requested["phase"] == "decode"
    requests, queries, keys = requested["requests"], requested["queries"], requested["keys"]
    lengths = [keys - queries if is_decode else keys] * requests
    for attempt in range(_MOST_ATTEMPTS):
        number, tokens = _step(llm, lengths, queries, is_decode, sampling)
        if attempt and all(one == (queries, keys) for one in tokens):
            break
        if is_decode:
            lengths = [max(1, n - (k - keys)) for n, (_, k) in zip(lengths, tokens, strict=True)]
    return {"step": number, "tokens": tokens}


def _step(llm, lengths, queries, is_decode, sampling):
    """Return the last step with all requests, each of so many new tokens, and their tokens."""
    from opmeter_hooks import STEPS
    from opmeter_launches import record_named
    from vllm import SamplingParams

    first = len(STEPS)
    steps = 3 + sum(lengths) // 1024 if is_decode else 0
    params = SamplingParams(max_tokens=1 + steps, ignore_eos=True, detokenize=False, **sampling)
    prompts = [{"prompt_token_ids": [1 + i % 1000 for i in range(n)]} for n in lengths]
    llm.generate(prompts, params, use_tqdm=False)
    record_named("MARK", "end", len(STEPS))
    for number in range(first, len(STEPS)):
        tokens = STEPS[number]
        if len(tokens) == len(lengths) and all(new == queries for new, _ in tokens):
            if not is_decode and tokens[0][1] < lengths[0]:
                continue  # a part of the prompts
            return number, tokens
    shown = [[new for new, _ in step] for step in STEPS[first : first + 4]]
    raise RuntimeError(
        f"no step has {len(lengths)} requests of {queries} new tokens; the first ones have {shown}"
    )


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
    """Return the error in a line, with the place in the engine where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[-1]
    for one in reversed(frames):
        if "vllm" in one.filename:
            frame = one
            break
    place = "/".join(Path(frame.filename).parts[-3:])
    reason = (str(error).strip().splitlines() or [""])[0]
    return f"{place}:{frame.lineno}: {frame.name}: {type(error).__name__}: {reason}"


if __name__ == "__main__":
    main(*sys.argv[1:])
