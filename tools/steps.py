"""The board of public end-to-end points: `python -m tools steps`.

It writes docs/evaluation/steps.md: what `opmeter step` predicts for each point without any data of
an NPU, at the rates that a device allows, next to the published number. Models that are not
packaged are recorded first; the page has the commands.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "evaluation" / "steps.md"
_A2, _A3 = "ATLAS_800_A2_376T_64G", "ATLAS_800_A3_752T_128G_DIE"
_KIMI = ("--layout", "tp=16,ep=16,sequence_split,quantisation=w4a16,experts=apart")
_KIMI_SOURCE = "vllm-ascend, page of Kimi-K2-Thinking: W4A16, 0.20.2rc1, one A3 node, 1k in, 1k out"
_GRAPHS, _DECODE = ("--graph", "full-decode"), ("--phase", "decode")
_LARGEST = 3  # quantities named in a row
_CAUSES = ("computing", "communication", "waiting", "host", "unknown")


@dataclass(frozen=True, slots=True)
class Point:
    """A published time of a pass.

    model    a packaged model, or the name of a recording
    words    options of `opmeter step`
    metric   TPOT or TTFT
    low_ms, high_ms  the published time, a range if it is one
    record   options of `opmeter model record`, for a model that is not packaged"""

    source: str
    model: str
    load: str
    words: Sequence[str]
    device: str
    metric: str
    low_ms: float
    high_ms: float
    record: Sequence[str] = ()

    @property
    def published_ms(self) -> float:
        return sqrt(self.low_ms * self.high_ms)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction: its time and interval in ms, its parts as shares, and the quantities that make
    the interval wide."""

    value_ms: float
    low_ms: float
    high_ms: float
    parts: Mapping[str, float]
    widest: Sequence[str]


def _of_kimi(requests: int, tpot_ms: float, ttft_ms: float) -> Iterator[Point]:
    """Yield the decode, halfway through the answers, and the prefill of all prompts together."""
    count = ("--requests", str(requests))
    decode = (*_KIMI, *count, "--context", "1536")
    prefill = (*_KIMI, *count, "--prompt", "1024")
    name, load = "kimi-k2-thinking", f"concurrency {requests}"
    yield Point(_KIMI_SOURCE, name, load, decode, _A3, "TPOT", tpot_ms, tpot_ms)
    yield Point(_KIMI_SOURCE, name, load, prefill, _A3, "TTFT", ttft_ms, ttft_ms)


def _recorded(
    source: str,
    model: str,
    load: str,
    metric: str,
    published_ms: tuple[float, float],
    record: Sequence[str],
) -> Point:
    low_ms, high_ms = published_ms
    return Point(source, model, load, (), _A2, metric, low_ms, high_ms, record)


POINTS: tuple[Point, ...] = (
    *_of_kimi(1, 57.71, 473.7),
    *_of_kimi(2, 60.29, 708.2),
    *_of_kimi(4, 69.97, 956.1),
    *_of_kimi(8, 87.37, 1361.9),
    Point(
        source="vllm-ascend#4656: 0.11.0rc2, CANN 8.3, TP4, FULL_DECODE_ONLY, 15k, one request",
        model="qwen3-32b",
        load="one request, 15k",
        words=("--layout", "tp=4", "--requests", "1", "--context", "15360"),
        device=_A2,
        metric="TPOT",
        low_ms=38.0,
        high_ms=38.0,
    ),
    _recorded(
        "vllm-ascend#4656: as above",
        *("qwen3-30b-a3b-graph", "one request, 15k", "TPOT", (20.0, 20.0)),
        ("--layout", "tp=4", *_GRAPHS, *_DECODE, "--requests", "1", "--context", "15360"),
    ),
    _recorded(
        "vllm-ascend#16049: 910B2, TP4, experts by TP, batch 12, eager",
        *("qwen3-30b-a3b-eager", "12 requests", "TPOT", (163.7, 163.7)),
        ("--layout", "tp=4", *_DECODE, "--requests", "12", "--context", "1536"),
    ),
    _recorded(
        "vllm-ascend#4167: 910, TP4, BF16, 1k, one request, 0.9.1 (20 to 21 ms) and 0.11 (27 ms)",
        *("qwq-32b", "one request, 1k", "TPOT", (20.0, 27.0)),
        ("--layout", "tp=4", *_GRAPHS, *_DECODE, "--requests", "1", "--context", "1536"),
    ),
    *(
        _recorded(
            "xLLM#2053: TP1, graph, 2k in, 1k out, one request; another engine than vLLM",
            *(model, "one request, 2k", metric, (ms, ms)),
            ("--layout", "tp=1", *_GRAPHS, "--requests", "1", "--context", "2560")
            + ("--tokens", "2048"),
        )
        for model, metric, ms in (
            ("qwen3-1.7b", "TPOT", 5.11),
            ("qwen3-1.7b", "TTFT", 35.0),
            ("qwen3-8b", "TPOT", 14.81),
            ("qwen3-8b", "TTFT", 126.0),
        )
    ),
)
# Points of the same sources without a time of a pass.
OTHERS = {
    "vllm-ascend#16049: 557 tokens/s in a graph, batch 12": "a throughput, with prefills",
    "vllm-ascend's nightly cases: 154 baselines in tokens/s at a concurrency": "closed loops with "
    "prefills, which need a scheduler",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of recordings."""
    parser.add_argument(
        "--recordings", type=Path, metavar="DIR", help="folder with NAME.json.gz of other models"
    )


def make(options: argparse.Namespace) -> int:
    """Predict all points, and write the page."""
    found = [(point, _predicted(point, options.recordings)) for point in POINTS]
    PAGE.write_text("".join(_page(found)), "utf-8")
    print(PAGE)
    return 0


def _predicted(point: Point, recordings: Path | None) -> Predicted | None:
    """Return the prediction of a point; None for a model that is not recorded."""
    model = point.model
    if point.record:
        file = (recordings or Path()) / f"{point.model}.json.gz"
        if recordings is None or not file.exists():
            return None
        model = str(file)
    command = [sys.executable, "-m", "jobs.cli", "step", model, *point.words]
    command += ["--device", point.device, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    passes = json.loads(done.stdout)["passes"]
    (one,) = (one for one in passes if one["metric"] == point.metric)
    return _of_pass(one)


def _of_pass(one: Mapping[str, Any]) -> Predicted:
    whole = one["time_us"]
    widest = sorted(one["error_budget"], key=lambda row: -row["share"])[:_LARGEST]
    value_ms, low_ms, high_ms = (one[name] / 1000 for name in ("time_us", "low_us", "high_us"))
    return Predicted(
        *(value_ms, low_ms, high_ms),
        {name: one["parts_us"].get(name, 0.0) / whole for name in _CAUSES},
        [f"{row['name'].partition(' ')[0] if row['case_id'] else row['name']}" for row in widest],
    )


def _page(found: Sequence[tuple[Point, Predicted | None]]) -> Iterator[str]:
    known = [(point, one) for point, one in found if one is not None]
    known.sort(key=lambda pair: -abs(log(pair[1].value_ms / pair[0].published_ms)))
    within = sum(one.low_ms <= p.high_ms and p.low_ms <= one.high_ms for p, one in known)
    yield "# Steps against public points\n\n"
    yield "<!-- Generated by `python -m tools steps`: do not edit. -->\n\n"
    yield (
        "Published times of passes on Ascend NPUs, and what [`opmeter step`](../how-to/"
        "predict-a-step.md) predicts without any data of an NPU: durations are ranges at the rates "
        "that a device allows, host costs and waits are the stated assumptions. The worst point is "
        "first, and no point is left out. The predictions are for vLLM-Ascend 0.18, the points for "
        "the versions in the last column.\n\n"
    )
    yield f"{within} of {len(known)} predicted intervals contain the published time.\n\n"
    header = (
        *("Model, load", "Published, ms", "Predicted, ms", "95 % interval", "Ratio"),
        *("Unknown", "Waiting", "Host", "Widest", "Source"),
    )
    yield f"| {' | '.join(header)} |\n{'| --- ' * len(header)}|\n"
    for point, one in known:
        published = f"{point.low_ms:g}"
        if point.high_ms != point.low_ms:
            published += f" to {point.high_ms:g}"
        cells = (
            *(f"{point.model}, {point.load}: {point.metric}", published, f"{one.value_ms:.1f}"),
            *(f"{one.low_ms:.1f} to {one.high_ms:.1f}", f"{one.value_ms / point.published_ms:.2f}"),
            *(f"{100 * one.parts[name]:.0f} %" for name in ("unknown", "waiting", "host")),
            *(", ".join(dict.fromkeys(one.widest)), point.source),
        )
        yield f"| {' | '.join(cells)} |\n"
    yield (
        "\n`Unknown`, `Waiting` and `Host` are shares of the predicted critical path. `Widest` is "
        "what makes the interval wide: measured durations of these kernels would narrow it first; "
        "`opmeter step --misses FILE` writes their cases as a source of a campaign.\n"
    )
    yield "\n## Not predicted\n\n| Point | Why |\n| --- | --- |\n"
    for point, missing in found:
        if missing is None:
            yield f"| {point.model}, {point.load}: {point.metric} | it was not recorded |\n"
    for source, reason in OTHERS.items():
        yield f"| {source} | {reason} |\n"
    yield "\n## Make it again\n\n```sh\n"
    commands = {
        point.model: f"opmeter model record {_config(point.model)} --generation A2 "
        f"{' '.join(point.record)} --output recordings/{point.model}.json.gz\n"
        for point, _ in found
        if point.record
    }
    yield from commands.values()
    yield "python -m tools steps --recordings recordings\n```\n"
    yield "\nThe folders have the models' published `config.json`.\n"


def _config(recording: str) -> str:
    return recording.removesuffix("-graph").removesuffix("-eager")
