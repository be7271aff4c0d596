"""The distribution of a model over devices."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from collector.codec.errors import BadInput
from collector.ops.expression import align
from collector.workloads.models import Decoder
from collector.workloads.serving import Batch

_RANKS = re.compile(r"[1-9][0-9]{0,4}")
NZ_SETTINGS = ("1", "0", "2")  # the first is the default of a layout


class Quantisation(StrEnum):
    """Quantisation of weights and activations.

    W4A8 is W8A8 except for the weights of experts. W4A16 is BF16 except for these, as a model's own
    config.json describes it."""

    BF16 = "bf16"
    W8A8 = "w8a8"
    W4A8 = "w4a8"
    W4A16 = "w4a16"

    @property
    def is_int8(self) -> bool:
        """Return whether products of attention are of INT8."""
        return self in (Quantisation.W8A8, Quantisation.W4A8)


class ExpertLaunch(StrEnum):
    """The launch of a layer's experts.

    FUSED is one DispatchFFNCombine; APART is a dispatch, a product for each expert, and a combine.
    """

    FUSED = "fused"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks and settings of a deployment.

    `tp` ranks share each layer, `dp` such groups have separate requests, and `ep` ranks share the
    experts. With `sequence_split` (FlashComm) the input of a norm is split among the ranks of a
    group, so that its sums are reduce-scatters and gathers; for dense models only where a pass has
    more tokens than the release requires. Without it the ranks of a group share a shared expert as
    they share a dense layer. `nz` is vLLM-Ascend's setting for weights in FRACTAL_NZ: 0 none, 1
    quantised ones, 2 all of the layers."""

    tp: int = 1
    dp: int = 1
    ep: int = 1
    sequence_split: bool = False
    quantisation: Quantisation = Quantisation.BF16
    nz: int = 1
    experts: ExpertLaunch = ExpertLaunch.FUSED

    def __str__(self) -> str:
        sizes = f"tp={self.tp},dp={self.dp},ep={self.ep}"
        split = ",sequence_split" if self.sequence_split else ""
        apart = f",experts={self.experts}" if self.experts is ExpertLaunch.APART else ""
        return f"{sizes}{split},quantisation={self.quantisation},nz={self.nz}{apart}"


def layout_of(text: str) -> Layout:
    """Parse `tp=16,ep=1,sequence_split,quantisation=w8a8`. Raises BadInput for an invalid text."""
    found: dict[str, int | bool | Quantisation | ExpertLaunch] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name in found:
            raise BadInput(f"layout: duplicate {name}")
        found[name] = _setting(name, value, part)
    return Layout(**found)  # type: ignore[arg-type]  # each by its name, above


def check_layout(decoder: Decoder, layout: Layout) -> None:
    """Raise BadInput where a model cannot be distributed in this layout."""
    if min(layout.tp, layout.dp, layout.ep) < 1:
        raise BadInput("layout: tp, dp and ep must be at least 1")
    for what, size in (("heads", decoder.heads), ("the intermediate size", decoder.intermediate)):
        if size % layout.tp:
            raise BadInput(
                f"layout: tp={layout.tp} does not divide {what} of {decoder.name}, {size}"
            )
    if decoder.kv_heads and max(decoder.kv_heads, layout.tp) % min(decoder.kv_heads, layout.tp):
        raise BadInput(
            f"layout: tp={layout.tp} does not divide {decoder.kv_heads} key heads of {decoder.name}"
        )
    if not decoder.is_moe and layout.ep > 1:
        raise BadInput(f"layout: expected ep=1, got ep={layout.ep}: {decoder.name} has no experts")
    if layout.ep not in (1, ranks := layout.tp * layout.dp):
        raise BadInput(
            f"layout: expected ep={ranks}, got ep={layout.ep}: experts use all ranks of tp x dp"
        )
    if decoder.shared % layout.tp:
        raise BadInput(
            f"layout: tp={layout.tp} does not divide the shared expert of {decoder.name}"
        )
    if layout.quantisation in (Quantisation.W4A8, Quantisation.W4A16) and not decoder.is_moe:
        scheme = layout.quantisation.upper()
        raise BadInput(f"layout: {scheme} requires experts, and {decoder.name} has none")
    if decoder.is_quantised and layout.quantisation is Quantisation.BF16:
        schemes = ", ".join(one for one in Quantisation if one is not Quantisation.BF16)
        raise BadInput(
            f"layout: {decoder.name} has quantised weights (quantization_config): expected "
            f"quantisation= with one of {schemes}, as it is served; for weights in bfloat16, "
            "remove that key"
        )
    if decoder.is_moe and decoder.experts % layout.ep:
        raise BadInput(
            f"layout: ep={layout.ep} does not divide {decoder.experts} experts of {decoder.name}"
        )


def _setting(name: str, value: str, part: str) -> int | bool | Quantisation | ExpertLaunch:
    if name == "sequence_split" and not value:
        return True
    if name == "quantisation" and value in tuple(Quantisation):
        return Quantisation(value)
    if name == "experts" and value in tuple(ExpertLaunch):
        return ExpertLaunch(value)
    if name in ("tp", "dp", "ep") and _RANKS.fullmatch(value):
        return int(value)
    if name == "nz" and value in NZ_SETTINGS:
        return int(value)
    expected = (
        f"tp=, dp=, ep=, nz=, sequence_split, quantisation={' or '.join(Quantisation)}, "
        f"experts={' or '.join(ExpertLaunch)}"
    )
    raise BadInput(f"layout: expected {expected}, got {part!r}")


# Commands that record a layout which is not packaged.


def layout_variables(layout: Layout) -> Mapping[str, str]:
    """Return the variables of vLLM-Ascend that make a layout."""
    is_fused = layout.ep > 1 and layout.experts is ExpertLaunch.FUSED
    return {
        "VLLM_ASCEND_ENABLE_NZ": str(layout.nz),
        "VLLM_ASCEND_ENABLE_FLASHCOMM1": str(int(layout.sequence_split)),
        "VLLM_ASCEND_ENABLE_FUSED_MC2": str(int(is_fused)),
    }


# As measured: docs/evaluation/models-recordings.md, "Time and memory".
_TIME = "up to five minutes; the first of a release also installs 9 GB of wheels"


def record_it(model: Decoder, layout: Layout, release: str, batch: Batch | None = None) -> str:
    """Return how long it takes to record a model in a layout, and the command, with decodes in
    graphs; with a batch, of that pass alone."""
    words = [f"opmeter model record {shlex.quote(model.path or model.name)} --release {release}"]
    words.append(f"--layout tp={layout.tp},dp={layout.dp},ep={layout.ep} --graph full-decode")
    words += _pass_options(batch) if batch is not None else []
    if layout.quantisation.is_int8:
        words.append(f"--quantization {layout.quantisation}")
    switches = layout_variables(layout).items() - layout_variables(Layout()).items()
    words += [f"--env {name}={value}" for name, value in sorted(switches)]
    words.append(f"--output {shlex.quote(model.name)}.json.gz")
    return f"record it ({_TIME}): {' '.join(words)}"


def _pass_options(batch: Batch) -> Iterator[str]:
    decodes, keys = batch.mixed_decodes, batch.followed_keys
    if batch.is_decode:
        decodes, keys = batch.requests - batch.padding, batch.keys
    yield f"--phase {'mixed' if batch.mixed_decodes else batch.phase}"
    if not batch.is_decode:
        yield f"--tokens {batch.requests * batch.queries} --prompts {batch.requests}"
        if batch.keys > batch.queries:  # in whole passes, as they are recorded
            yield f"--earlier {align(batch.keys - batch.queries, batch.queries)}"
    if decodes:
        yield f"--requests {decodes} --context {max(keys, 2)}"
    if batch.predicted:
        yield f"--speculative {batch.predicted}"
