"""Measure the host times of docs/evaluation/host-costs.md, and print its tables:

    python -m tests.stacks.host_costs STORE [SESSIONS]

SESSIONS more sessions of each model, release and mode are added to the store, none without it. A
session takes one to three minutes with the environments of `opmeter model record`.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from collector.codec.text import time_text
from collector.database.host_sessions import BETWEEN, LAUNCH, PASS, HostDecode
from collector.engine.environments import RELEASES
from collector.engine.model_folder import find_model
from jobs.cli.host import host_command
from jobs.planning.host_costs import HostCosts, host_directories
from jobs.planning.step_time import CANN_CALL
from opmeter import open as open_database
from opmeter.answers import Answer, Channel

_RANKS, _LAYOUT = "tp=4", "tp=4,dp=1,ep=1"
_MODES = ("eager", "graph")
_DENSE, _EXPERTS = MODELS = ("qwen3-32b", "qwen3-30b-a3b")
# Qwen3-30B-A3B, by the sizes of its config.json.
_SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
# vllm-ascend#4656 (0.11.0rc2, 15k tokens), #16049 (batch 12).
_EVIDENCE = {
    (_DENSE, "graph"): "38 ms ([#4656](https://github.com/vllm-project/vllm-ascend/issues/4656))",
    (_EXPERTS, "graph"): (
        "20 ms ([#4656](https://github.com/vllm-project/vllm-ascend/issues/4656)); 21.5 ms, batch "
        "12 ([#16049](https://github.com/vllm-project/vllm-ascend/issues/16049))"
    ),
    (_EXPERTS, "eager"): (
        "163.7 ms, batch 12 ([#16049](https://github.com/vllm-project/vllm-ascend/issues/16049))"
    ),
}
_CALLS = (
    *("aclnnMatmul", "aclnnAddRmsNormBias", "aclnnFusedInferAttentionScoreV3", "aclnnSwiGlu"),
    *("aclnnGroupedMatmulV5", "aclnnMoeGatingTopK", "ReshapeAndCacheParam", "HcclAllReduce"),
    *("copy", "record", "wait", "update", "replay"),
)


def main(arguments: list[str]) -> int:
    store, *more = arguments
    for _ in range(int(more[0]) if more else 0):
        for release in RELEASES:
            with tempfile.TemporaryDirectory() as folder:
                for model in (_DENSE, str(_experts(Path(folder) / _EXPERTS))):
                    host_command(
                        model,
                        layout=_RANKS,
                        release=release,
                        mode=",".join(_MODES),
                        sessions=1,
                        root=store,
                    )
    print("\n".join(page(store)))
    return 0


def _experts(folder: Path) -> Path:
    """Return a folder with the configuration of Qwen3-30B-A3B."""
    values = json.loads(find_model("qwen3-235b-a22b").files["config.json"])
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values | _SIZES))
    return folder


def page(store: str) -> Iterator[str]:
    """Yield the tables of a store."""
    found = dict(_measured(store))
    yield "|Release|Model|Mode|Sessions|A pass|Launches|A launch|Between passes|"
    yield "|---|---|---|---|---|---|---|---|"
    for (release, model, mode), costs in found.items():
        whole = costs.answer(PASS)
        cells = (release, model, mode, str(whole.support), _cell(whole), str(costs.launches))
        yield _row(*cells, _cell(costs.answer(LAUNCH)), _cell(costs.answer(BETWEEN)))
    yield ""
    columns = list(found)
    yield _row(
        "Call, us", *(f"{model}, {release[-4:]}, {mode}" for release, model, mode in columns)
    )
    yield "|---" * (1 + len(columns)) + "|"
    for call in _CALLS:
        answers = [found[column].answer(call) for column in columns]
        if any(one.channel is not Channel.MISS for one in answers):
            yield _row(f"`{call}`", *map(_numbers, answers))
    yield ""
    yield "|Model, mode|Release|Host, least|with CANN at its value|Published step|"
    yield "|---|---|---|---|---|"
    for (release, model, mode), costs in found.items():
        whole, cann = costs.answer(PASS), costs.launches
        least_us = whole.low_us + cann * CANN_CALL.low_us
        usual_us = whole.value_us + cann * CANN_CALL.value_us
        evidence = _EVIDENCE.get((model, mode), "-")
        yield _row(f"{model}, {mode}", release, time_text(least_us), time_text(usual_us), evidence)


def _measured(store: str) -> Iterator[tuple[tuple[str, str, str], HostCosts]]:
    database = open_database(store)
    for release in RELEASES:
        for path in host_directories(database.directories, release):
            for model in MODELS:
                for mode in _MODES:
                    decode = HostDecode(model, _LAYOUT, mode)
                    if costs := HostCosts.find(database.directory(path), decode):
                        yield (release, model, mode), costs


def _cell(one: Answer) -> str:
    ends = f"{time_text(one.low_us)} to {time_text(one.high_us)}"
    return f"{time_text(one.value_us)} ({ends})"


def _numbers(one: Answer) -> str:
    if one.channel is Channel.MISS:
        return "-"
    return f"{one.value_us:.3g} ({one.low_us:.3g} to {one.high_us:.3g})"


def _row(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
