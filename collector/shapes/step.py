"""One forward pass of a model as cases: each kernel with its shapes, where it stands and how often.

Nothing is measured or assumed here but what a release's set of kernels says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collector.case import Slot, tensor_cells
from collector.errors import BadInput
from collector.record import CaseRecord
from collector.shapes.batch import Batch, check_batch
from collector.shapes.blocks import in_blocks
from collector.shapes.decoder import Decoder
from collector.shapes.expression import parse_expression
from collector.shapes.kernel_set import (
    CollectivePattern,
    KernelPattern,
    KernelSet,
    ProductPattern,
    SlotPattern,
    StepPattern,
)
from collector.shapes.layout import Experts, Layout, check_layout
from collector.shapes.names import Lists, Numbers, lists_of, numbers_of
from collector.vocabulary import (
    ACCELERATOR_CORE,
    EP_SIZE,
    OP_STATE,
    RUNTIME_PREFIX,
)

_DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class StepKernel:
    """A case, where in the model it stands, how many times the pass launches it, and how the
    pattern is known: `profile` of a real step, or `code` of the release."""

    layer: str
    record: CaseRecord
    times: int
    source: str


@dataclass(frozen=True, slots=True)
class StepCollective:
    """A message of the pass, over ranks of tp or of ep; its tier is that of the nearest ranks."""

    layer: str
    operation: str
    message_bytes: int
    group_size: int
    times: int
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    kernels: tuple[StepKernel, ...]
    collectives: tuple[StepCollective, ...]


def derive_step(decoder: Decoder, layout: Layout, batch: Batch, kernels: KernelSet) -> Step:
    """The pass of one rank, in the order of the set. BadInput for a layout that the model does not
    take, and for what no set of kernels says."""
    check_layout(decoder, layout)
    check_batch(batch)
    if batch.predicted and not decoder.predictors:
        raise BadInput(f"{decoder.name} has no layer that predicts tokens")
    if not decoder.is_moe and batch.tokens <= kernels.habits.dense_split_above_tokens:
        layout = replace(layout, sequence_split=False)
    names = _known(decoder, layout, batch, kernels)
    if batch.is_draft:
        decoder, layout = _of_draft(decoder), replace(layout, experts=Experts.APART)
        names = _known(decoder, layout, batch, kernels)
    lists = lists_of(decoder, layout, batch, kernels.habits)
    found: list[StepKernel] = []
    collectives: list[StepCollective] = []
    for pattern in kernels.patterns:
        times = pattern.times.value(names) if pattern.when.value(names) else 0
        if times < 1:
            continue
        if isinstance(pattern.what, CollectivePattern):
            collectives.extend(_messages(pattern, pattern.what, times, names))
        else:
            found.extend(_launched(pattern, times, names, lists))
    return Step(tuple(found), tuple(collectives))


def _known(decoder: Decoder, layout: Layout, batch: Batch, kernels: KernelSet) -> Numbers:
    """The numbers of a pass that the set tells. BadInput for one of which the release does what the
    set does not tell."""
    names = numbers_of(decoder, layout, batch, kernels.habits)
    for one in kernels.unknown:
        if one.when.value(names):
            raise BadInput(f"{decoder.name}, {kernels.release}: {one.what}")
    return names


def _of_draft(decoder: Decoder) -> Decoder:
    """The one layer that predicts: with experts where the model has any, and, of sparse attention,
    an indexer of its own. No release fuses its experts."""
    dense = 0 if decoder.is_moe else 1
    return replace(decoder, layers=1, dense_layers=dense, indexers=min(1, decoder.indexers))


def _messages(
    pattern: StepPattern, what: CollectivePattern, times: int, names: Numbers
) -> Iterator[StepCollective]:
    size = names[what.group]
    if size > 1:
        message = what.message.value(names)
        yield StepCollective(pattern.layer, what.operation, message, size, times, pattern.source)


def _launched(
    pattern: StepPattern, times: int, names: Numbers, lists: Lists
) -> Iterator[StepKernel]:
    if isinstance(pattern.what, ProductPattern):
        records = _product(pattern.what, names)
    else:
        assert isinstance(pattern.what, KernelPattern)
        records = iter([_kernel(pattern.what, names, lists)])
    for record in records:
        yield StepKernel(pattern.layer, record, times, _known_by(pattern, names))


def _known_by(pattern: StepPattern, names: Numbers) -> str:
    """INT8 was seen in traces of latent attention alone."""
    is_int8 = isinstance(pattern.what, ProductPattern) and pattern.what.scheme != "bf16"
    return "code" if is_int8 and names["quantised"] and not names["mla"] else pattern.source


def _kernel(what: KernelPattern, names: Numbers, lists: Lists) -> CaseRecord:
    inputs, outputs = ([_slot(one, names) for one in side] for side in (what.inputs, what.outputs))
    columns = {_column(name): _told(text, names, lists) for name, text in what.columns.items()}
    return replace(_record(what.kernel, inputs, outputs), extra=columns)


def _product(what: ProductPattern, names: Numbers) -> Iterator[CaseRecord]:
    """MatMulV2 of BF16; of INT8 the kernel that quantises what comes in, by one scale that was
    found beforehand or by one a token, and QuantBatchMatmulV3."""
    rows, width, depth = (one.value(names) for one in (what.rows, what.width, what.depth))
    given, result = _dense("DT_BF16", rows, depth), _dense("DT_BF16", rows, width)
    if what.scheme == "bf16" or not names["quantised"]:
        weight = _weight("DT_BF16", (width, depth), is_nz=what.may_be_nz and names["nz"] > 1)
        bias = [_dense("DT_BF16", width)] if what.has_bias.value(names) else []
        yield _record("MatMulV2", [given, weight, *bias], [result])
        return
    small = _dense("INT8", rows, depth)
    weight = _weight("INT8", (depth, width), is_nz=what.may_be_nz and names["nz"] > 0)
    scales = _dense("FLOAT", width)
    if what.scheme in ("static", "given"):
        by_column = _dense("DT_BF16", depth)
        if what.scheme == "static":
            yield _record("AscendQuantV2", [given, by_column, by_column], [small])
        more = _dense("INT32", width)
    else:
        more = _dense("FLOAT", rows)
        yield _record("DynamicQuant", [given], [small, more])
    yield _record("QuantBatchMatmulV3", [small, weight, scales, more], [result])


def _record(kernel: str, inputs: list[Slot], outputs: list[Slot]) -> CaseRecord:
    cells = {
        OP_STATE: _DYNAMIC,
        ACCELERATOR_CORE: "",
        **tensor_cells(inputs, outputs),
    }
    return CaseRecord(kernel, cells, {})


def _slot(pattern: SlotPattern, names: Numbers) -> Slot:
    if pattern.dims is None:
        return Slot(None, pattern.dtype, pattern.format)
    shape = tuple(one.value(names) for one in pattern.dims)
    if any(size < 0 for size in shape):
        raise BadInput(f"a pattern produced the negative shape {shape}")
    if pattern.in_blocks:
        return in_blocks(pattern.dtype, shape)
    return Slot(shape, pattern.dtype, pattern.format)


def _dense(dtype: str, *shape: int) -> Slot:
    return Slot(shape, dtype, "ND")


def _weight(dtype: str, shape: tuple[int, int], *, is_nz: bool) -> Slot:
    return in_blocks(dtype, shape) if is_nz else _dense(dtype, *shape)


def _column(name: str) -> str:
    return name if name == EP_SIZE else RUNTIME_PREFIX + name


def _told(text: str, names: Numbers, lists: Lists) -> str:
    if text.startswith("'"):
        return text.strip("'")
    if text in lists:
        return ",".join(map(str, lists[text]))
    return str(parse_expression(text).value(names))
