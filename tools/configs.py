"""Recordings of published models: `python -m tools configs [MODEL...]`.

It records one decode of each model of `tools/published.yaml` in each release, with
`opmeter model record` as a user would, and writes docs/evaluation/recorded-configs.md: what ran, in
which time and memory, whether its launches are those of the config.json, or who refused it. What
was recorded is kept in a folder, and only what is not there yet is run.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from collector.codec.canonical import decode_value
from collector.codec.text import percent
from collector.engine.environments import RELEASES
from collector.engine.wheel import cache, installed
from collector.workloads.call_order import Block
from collector.workloads.recorded_step import read_recording
from jobs.planning.not_measured import not_measured

PAGE = Path(__file__).parents[1] / "docs" / "evaluation" / "recorded-configs.md"
_LIST = Path(__file__).parent / "published.yaml"
_WHEEL = ("aiconfigurator-core", "0.12.0")
_FILES = "aiconfigurator_core/model_configs"
_LOAD = ("--phase", "decode", "--requests", "16", "--context", "1024")
_ERROR = "opmeter: "
# Kernels of which a layer of the kind launches one in a decode.
_KINDS = {
    "attention": re.compile(
        "FusedInferAttentionScore|PagedAttention|MultiLatentAttention|SparseFlashAttention"
        "|SparseAttnSharedkv$|KvQuantSparseFlashAttention"
    ),
    "linear": re.compile("delta_rule_update|RecurrentGatedDeltaRule|kda_.*recurrent"),
    "mamba": re.compile("_selective_scan_update"),
    "experts": re.compile("MoeInitRouting|MoeDistributeDispatch|DispatchFFNCombine"),
}
_SCRATCH = re.compile(r"\S*/opmeter-record-\w+/")
_SHOWN_SHARE = 0.001  # of the roofline time
_OUTCOME = "outcome.json"
_LAYER = 8  # calls of a block that is shown as one


class Origin(StrEnum):
    """Where a config.json is from, as `published.yaml` says."""

    WHEEL = "wheel"
    PACKAGE = "package"
    CLASS = "class"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Published:
    """A model in a layout, as `published.yaml` describes it.

    what   of a further layout of a model: what it tries
    words  further options of `opmeter model record`
    draft  config.json of a model that drafts a token"""

    model: str
    family: str
    layout: str = ""
    weights: str = ""
    origin: Origin = Origin.WHEEL
    keys: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    layers: Mapping[str, int] = field(default_factory=dict)
    what: str = ""
    words: tuple[str, ...] = ()
    draft: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a recording ended: its times and memory, and the line of a refusal."""

    seconds: float
    cpu_s: float
    memory_gb: float
    refusal: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the models or layouts, the releases and the folder."""
    parser.add_argument("names", nargs="*", metavar="MODEL", help="model or layout; all without")
    parser.add_argument("--release", action="append", choices=tuple(RELEASES), help="all without")
    parser.add_argument(
        "--work", type=Path, default=cache() / "recorded-configs", help="folder of what is recorded"
    )


def make(options: argparse.Namespace) -> int:
    """Record what is not recorded yet, and write the page."""
    for one in published():
        for release in options.release or RELEASES:
            place = place_of(options.work, one, release)
            is_named = not options.names or (one.what or one.model) in options.names
            if is_named and not (place / _OUTCOME).exists():
                _record(one, release, place)
    PAGE.write_text("".join(page(options.work)), "utf-8")
    print(PAGE)
    return 0


def published() -> tuple[Published, ...]:
    """Return the models of the list, and then the layouts of some of them."""
    found = yaml.safe_load(_LIST.read_text("utf-8"))
    models = {}
    for one in found["models"]:
        models[one["model"]] = decode_value(Published, one, what="a model", key=_LIST.name)
    layouts = []
    for one in found["layouts"]:
        model = models[one.pop("model")]
        layouts.append(replace(model, **one | {"words": tuple(one.get("words", ()))}))
    return (*models.values(), *layouts)


def place_of(work: Path, one: Published, release: str) -> Path:
    words = (one.model, one.what, one.layout if one.what else "")
    return work / release / re.sub(r"[^\w.-]+", "--", " ".join(filter(None, words)))


def _record(one: Published, release: str, place: Path) -> None:
    """Record a model in a release, and write the outcome next to the recording."""
    shutil.rmtree(place, ignore_errors=True)  # of a run that was interrupted
    model = one.model
    if one.origin is not Origin.PACKAGE:
        model = str(_model_folder(one, place / "model"))
    words = [sys.executable, "-m", "jobs.cli", "model", "record", model, *_LOAD]
    words += ["--release", release, "--output", str(place / "found.json.gz")]
    words += ["--layout", one.layout] if one.layout else []
    words += ["--quantization", one.weights] if one.weights else []
    words += one.words
    if one.draft:
        (place / "draft").mkdir(parents=True)
        (place / "draft" / "config.json").write_text(json.dumps(one.draft))
        words += _draft_words(place / "draft")
    place.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with (place / "output.txt").open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
    lines = (place / "output.txt").read_text().splitlines()
    refusal = next((line for line in reversed(lines) if line.startswith(_ERROR)), "")
    if status and not refusal:
        refusal = lines[-1] if lines else f"status {status}"
    outcome = Outcome(
        time.monotonic() - begun,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1e6,
        refusal.removeprefix(_ERROR),
    )
    (place / _OUTCOME).write_text(json.dumps(asdict(outcome)))
    print(one.model, release, outcome, flush=True)


def _draft_words(folder: Path) -> Sequence[str]:
    """Return the options of a model that drafts a token, in a folder."""
    drafts = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 1}
    return ("--speculative", "1", "--engine", json.dumps({"speculative_config": drafts}))


def _model_folder(one: Published, folder: Path) -> Path:
    """Write the config.json of a model, and the Python file that its model type requires."""
    folder.mkdir(parents=True)
    values = {"torch_dtype": "bfloat16", **one.keys}
    if one.origin is Origin.WHEEL:
        package, number = _WHEEL
        name = f"{one.model.replace('/', '--')}_config.json"
        values = json.loads((installed(package, number, _FILES) / _FILES / name).read_bytes())
    if one.code:
        values["auto_map"] = {"AutoConfig": f"configuration.{one.code}"}
        (folder / "configuration.py").write_text(
            "from transformers import PretrainedConfig\n\n\n"
            f"class {one.code}(PretrainedConfig):\n"
            f'    model_type = "{values["model_type"]}"\n'
        )
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def page(work: Path) -> Iterator[str]:
    found = [
        (one, release, place)
        for one in published()
        for release in RELEASES
        if ((place := place_of(work, one, release)) / _OUTCOME).exists()
    ]
    outcomes = {place: _outcome(place) for _, _, place in found}
    layouts = [row for row in found if row[0].what]
    found = [row for row in found if not row[0].what]
    recorded = [row for row in found if not outcomes[row[2]].refusal]
    refused = [row for row in found if outcomes[row[2]].refusal]
    families = {one.family for one, _, _ in found}
    whole = {one.model for one, _, _ in recorded}
    yield "# Recorded configurations\n\n"
    yield "<!-- Generated by `python -m tools configs`: do not edit. -->\n\n"
    yield (
        f"{len({one.model for one, _, _ in found})} published models of {len(families)} families, "
        f"recorded by `opmeter model record` as a user would: {len(whole)} are recorded in at "
        "least one release. Each is a decode of 16 requests with 1,024 tokens, eager, of all "
        "layers, on one rank of the layout. Nothing is cut. Times and memory are of this machine "
        "(two cores that other processes shared).\n\n"
    )
    yield "## Recorded\n\n"
    yield (
        "*Layers* are the kernels of each kind of layer, of how many the config.json has, counted "
        "by hand; for some models, also launches of other kernels. *Order* has the blocks that "
        "repeat in the order of calls, with their calls. *Not measured* are kernels without an "
        "operator of the catalogue, of at least 0.1 % of the roofline time.\n\n"
    )
    header = (
        *("Model", "Release", "Layout", "Layers", "Order", "Launches", "CPU time", "Memory"),
        "Not measured",
    )
    yield from _table(
        header,
        (_recorded(*row, outcomes[row[2]]) for row in recorded),
    )
    yield "\n## Refused\n\nThe line that `opmeter model record` prints.\n\n"
    yield from _table(
        ("Model", "Release", "CPU time", "Refusal"),
        (
            (one.model, _number(release), f"{outcomes[place].cpu_s:.0f} s", outcomes[place].refusal)
            for one, release, place in refused
        ),
    )
    yield (
        "\n## Layouts\n\nEach tried on a dense model, one with experts, or one with latent "
        "attention, with these options of `opmeter model record`.\n\n"
    )
    yield from _table(
        ("Layout", "Model", "Release", "Options", "Result"),
        (_layout(*row, outcomes[row[2]]) for row in layouts),
    )
    yield "\n## Origin of the files\n\n"
    for origin, text in _ORIGINS.items():
        named = sorted({one.model for one, _, _ in found if one.origin is origin})
        yield f"- {text}: {', '.join(named)}.\n"
    coded = sorted({one.model for one, _, _ in found if one.code})
    yield (
        "\nSome models bring a Python file for their `model_type`, which no package has. Here it "
        "is a configuration class of four lines that holds any keys: "
        f"{', '.join(coded)}.\n"
    )


_ORIGINS = {
    Origin.WHEEL: f"a file of the wheel {'-'.join(_WHEEL)}, which has those of Hugging Face",
    Origin.PACKAGE: "bundled with opmeter ([origins](models-new.md#origin-of-the-files))",
    Origin.CLASS: "the defaults of the configuration class that documents the model, in "
    "Transformers or vLLM",
    Origin.PAGE: "facts of the model's own page, in `tools/published.yaml`; not compared with a "
    "copy of the file",
}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |\n{'| --- ' * len(header)}|\n"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n"


def _layout(one: Published, release: str, place: Path, outcome: Outcome) -> Sequence[str]:
    result = outcome.refusal
    if not result:
        *_, launches, cpu, _, missing = _recorded(one, release, place, outcome)
        result = f"{launches} launches, {cpu}" + (f"; not measured: {missing}" if missing else "")
    words = [*(("--layout", one.layout) if one.layout else ()), *one.words]
    words += _draft_words(Path("DRAFT")) if one.draft else ()
    return (one.what, one.model, _number(release), f"`{shlex.join(words)}`", result)


def _recorded(one: Published, release: str, place: Path, outcome: Outcome) -> Sequence[str]:
    recording = read_recording(place / "found.json.gz")
    (found,) = recording.passes
    counts = Counter[str]()
    for launch, times in found.launched():
        counts[launch.kernel] += times
        for kind, kernels in _KINDS.items():
            counts[kind] += times if kernels.search(launch.kernel) else 0
    expected = {**dict.fromkeys(_KINDS, 0), **one.layers}
    layers = ", ".join(
        f"{name} {counts[name]} of {count}"
        for name, count in expected.items()
        if counts[name] or count
    )
    return (
        one.model,
        _number(release),
        ", ".join(filter(None, (one.layout or "tp=1", one.weights))),
        layers,
        shown_blocks(found.order.parts),
        f"{sum(times for _, times in found.launched()):,}",
        f"{outcome.cpu_s:.0f} s",
        f"{outcome.memory_gb:.1f} GB",
        ", ".join(
            f"{one.kernel} {percent(one.share)}"
            for one in not_measured(recording)
            if one.share >= _SHOWN_SHARE
        ),
    )


def shown_blocks(parts: Iterable[int | Block]) -> str:
    """Return the blocks of an order that are as long as a layer, and the calls outside of them."""
    found, outside = [], 0
    for part in parts:
        if isinstance(part, Block) and part.size // part.times >= _LAYER:
            inner = shown_blocks(part.parts)
            found += [str(outside)] if outside else []
            found.append(f"{part.times} x {inner if inner.isdecimal() else f'({inner})'}")
            outside = 0
        else:
            outside += part.size if isinstance(part, Block) else 1
    return " + ".join([*found, *([str(outside)] if outside else [])])


def _outcome(place: Path) -> Outcome:
    found = Outcome(**json.loads((place / _OUTCOME).read_bytes()))
    text = found.refusal.replace(f"{place}/", "")
    return replace(found, refusal=_SCRATCH.sub("", text))


def _number(release: str) -> str:
    return release.removeprefix("vllm-ascend-")
