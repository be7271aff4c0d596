"""`model` of a campaign's sources: a model, how it is spread over devices, and what it serves."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.errors import BadInput
from collector.shapes.batch import Phase
from collector.shapes.decoder import Decoder
from collector.shapes.kernel_set import USUAL_RELEASE, find_kernel_set
from collector.shapes.layout import NZ_SETTINGS, Experts, Layout, Quantisation, check_layout
from collector.shapes.models import bundled_decoder, unknown_model
from collector.shapes.serving import Serving
from jobs.campaign.collectives import StepCollectives, read_step_collectives
from jobs.campaign.document import Entry

KEYS = ("layout", "serving", "release")  # beside `model`
_SERVING = (
    *("concurrency", "input", "output", "max_batched_tokens", "graph_sizes", "phase", "mixed"),
    *("predicted_tokens", "skew", "imbalance"),
)
_PERCENTS = ("skew", "imbalance")
_BATCHED_TOKENS = 8192
_RANKS = ("tp", "dp", "ep")
# The first of each is that of a layout that does not say.
_CHOICES: dict[str, tuple[str, ...]] = {
    "sequence_split": ("false", "true"),
    "quantisation": tuple(Quantisation),
    "nz": NZ_SETTINGS,
    "experts": tuple(Experts),
}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The steps of a model, which is bundled, or the config.json of a path: that is read when cases
    are made, not here. With `collectives` what its ranks send each other are cases, too."""

    model: Decoder | Path
    layout: Layout
    serving: Serving
    release: str
    collectives: StepCollectives | None = None


def read_model(found: Mapping[str, Entry], base: Path) -> ModelSource:
    """The source of the keys `model`, KEYS and `collectives`. A file's name is taken from `base`.
    Raises BadInput, with the line, for an invalid value."""
    said = found["model"]
    for key in ("layout", "serving"):
        if key not in found:
            raise said.refusal(f"a model requires the key {key!r} in the same source")
    release = found["release"].text() if "release" in found else USUAL_RELEASE
    layout = _layout(found["layout"])
    word = said.text()
    model = bundled_decoder(word) or base / word
    try:
        if isinstance(model, Decoder):
            check_layout(model, layout)
        elif model.suffix != ".json":
            raise unknown_model(word)
        find_kernel_set(release)
    except BadInput as error:
        raise said.refusal(str(error)) from error
    of_ranks = found.get("collectives")
    return ModelSource(
        model,
        layout,
        _serving(found["serving"]),
        release,
        read_step_collectives(of_ranks) if of_ranks is not None else None,
    )


def _layout(entry: Entry) -> Layout:
    found = entry.fields((*_RANKS, *_CHOICES))
    tp, dp, ep = (found[key].integer(1) if key in found else 1 for key in _RANKS)
    chosen = {
        key: found[key].choice(allowed) if key in found else allowed[0]
        for key, allowed in _CHOICES.items()
    }
    return Layout(
        *(tp, dp, ep, chosen["sequence_split"] == "true"),
        quantisation=Quantisation(chosen["quantisation"]),
        nz=int(chosen["nz"]),
        experts=Experts(chosen["experts"]),
    )


def _serving(entry: Entry) -> Serving:
    found = entry.fields(_SERVING, required=_SERVING[:3])
    most = found["max_batched_tokens"].integer(1) if "max_batched_tokens" in found else None
    sizes = found["graph_sizes"].items() if "graph_sizes" in found else []
    return Serving(
        tuple(item.integer(1) for item in found["concurrency"].items()),
        found["input"].integer(1),
        found["output"].integer(1),
        most or _BATCHED_TOKENS,
        tuple(item.integer(1) for item in sizes),
        (Phase(found["phase"].choice(tuple(Phase))),) if "phase" in found else tuple(Phase),
        mixed="mixed" in found and found["mixed"].choice(("false", "true")) == "true",
        **{
            field: found[key].integer(0) if key in found else 0
            for key, field in (("predicted_tokens", "predicted"), *((p, p) for p in _PERCENTS))
        },
    )
