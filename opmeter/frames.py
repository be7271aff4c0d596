"""The rows of a kernel type as an Arrow table, with a unit and a sentence for each column."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import BadInput
from collector.database.index import Index, IndexBlock
from collector.model.vocabulary import INPUT_FORMATS, OP_STATE, OUTPUT_DTYPES, OUTPUT_FORMATS
from collector.ops.sizes import product_sizes
from opmeter.answers import channel_of
from opmeter.arguments import bad_argument, size_of, text_of
from opmeter.cases import check_sizes

Quality = Literal["any", "unwarned", "repeated"]
# A size, the least and greatest, or some sizes.
Filter = SupportsIndex | tuple[SupportsIndex, SupportsIndex] | Sequence[SupportsIndex]

_SHAPES = pa.list_(pa.list_(pa.int64()))
_WORDS = pa.dictionary(pa.int32(), pa.string())
_PRODUCT = ("m", "n", "k")


def _field(name: str, kind: Any, description: str, unit: str = "") -> pa.Field:
    metadata = {"description": description, **({"unit": unit} if unit else {})}
    return pa.field(name, kind, metadata=metadata)


SCHEMA = pa.schema(
    [
        _field("case", pa.string(), "id of the case"),
        _field("kernel_type", _WORDS, "type of the kernel, as profilers name it"),
        _field("inputs", _SHAPES, "shape of each input; empty for a scalar or an absent one"),
        _field("input_dtypes", pa.list_(pa.string()), "dtype of each input"),
        _field("input_formats", _WORDS, "format of each input, separated by `;`"),
        _field("outputs", _SHAPES, "shape of each output; empty for a scalar or an absent one"),
        _field("output_dtypes", _WORDS, "dtype of each output, separated by `;`"),
        _field("output_formats", _WORDS, "format of each output, separated by `;`"),
        _field("op_state", _WORDS, "`static` for a kernel that was compiled for its shapes"),
        _field("settings", _WORDS, "further columns that distinguish the case, as JSON"),
        _field("lengths", pa.string(), "lists of lengths by their column, as JSON"),
        _field("mean_us", pa.float64(), "mean duration over sessions", "us"),
        _field("low_us", pa.float64(), "lower end of its 95 % interval", "us"),
        _field("high_us", pa.float64(), "upper end of its 95 % interval", "us"),
        _field("degrees", pa.float64(), "degrees of freedom of that interval"),
        _field("sessions", pa.int64(), "number of sessions of the mean"),
        _field("warnings", _WORDS, "names of the gates that warn of it, separated by `;`"),
        _field("channel", _WORDS, "`measured` in one session, `pooled` from several"),
    ]
)
_OWN = frozenset({OP_STATE, INPUT_FORMATS, OUTPUT_DTYPES, OUTPUT_FORMATS})


def kernel_table(
    index: Index, blocks: Sequence[IndexBlock], min_quality: Quality, where: Mapping[str, Filter]
) -> pa.Table:
    """Return the rows of these blocks, block by block, that meet all conditions; with conditions
    also the columns m, n and k. Raises BadInput for an unknown condition."""
    if unknown := set(where) - set(_PRODUCT):
        raise BadInput(f"{min(unknown)}: expected a condition on one of m, n, k")
    tables = [_block_table(index, block, bool(where)) for block in blocks]
    table = pa.concat_tables(tables)
    if text_of("min_quality", min_quality) not in ("any", "unwarned", "repeated"):
        raise BadInput(f"min_quality: expected any, unwarned or repeated, got {min_quality!r}")
    if min_quality != "any":
        table = table.filter(pc.equal(table["warnings"].cast(pa.string()), ""))
    if min_quality == "repeated":
        table = table.filter(pc.greater(table["sessions"], 1))
    for name, limit in where.items():
        column, sizes = table[name], _sizes(name, limit)
        if isinstance(limit, tuple) and len(limit) == 2:
            least, most = sizes
            is_in = pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))
        else:
            is_in = pc.is_in(column, value_set=pa.array(sizes, pa.int64()))
        table = table.filter(is_in)
    return table


def _sizes(name: str, limit: Filter) -> list[int]:
    """Return the sizes of a condition, of any type of integers. Raises BadInput for others."""
    try:
        if isinstance(limit, Iterable) and not isinstance(limit, bytes | Mapping):
            found = list(map(size_of, limit))
        else:
            found = [size_of(limit)]
    except (TypeError, OverflowError) as error:
        what = "a size, the least and greatest, or a list of sizes"
        raise bad_argument(name, what, limit) from error
    check_sizes(found, name)
    return found


def _block_table(index: Index, block: IndexBlock, with_product: bool) -> pa.Table:
    rows = slice(block.begin, block.end)
    count = block.end - block.begin
    sizes = index.sizes_of(block)
    ranks = [max(rank, 0) for _, rank in block.inputs]
    outputs = [max(rank, 0) for rank in block.outputs]
    settings = index.arrays["settings"][rows]
    names, which = np.unique(settings, return_inverse=True)
    known = [json.loads(index.text("settings", number)) for number in names.tolist()]

    def of_settings(name: str) -> pa.Array:
        return _words([one.get(name, "") for one in known], which)

    further = [{k: v for k, v in one.items() if k not in _OWN} for one in known]
    lengths = index.arrays["lengths"][rows]
    warned, warnings = np.unique(index.arrays["warnings"][rows], return_inverse=True)
    sessions = index.arrays["sessions"][rows].astype(np.int64)
    dtypes = pa.array([[dtype for dtype, _ in block.inputs]], pa.list_(pa.string()))
    numbers = {name: index.arrays[name][rows] for name in ("mean_us", "low_us", "high_us")}
    channels = [channel_of(count).value for count in range(3)]
    columns: dict[str, Any] = {
        "case": [one.decode() for one in index.arrays["case"][rows].tolist()],
        "kernel_type": _words([block.kernel], np.zeros(count, np.int64)),
        "inputs": _shapes(sizes[:, : sum(ranks)], ranks),
        "input_dtypes": dtypes.take(pa.array(np.zeros(count, np.int64))),
        "input_formats": of_settings(INPUT_FORMATS),
        "outputs": _shapes(sizes[:, sum(ranks) : sum(ranks) + sum(outputs)], outputs),
        "output_dtypes": of_settings(OUTPUT_DTYPES),
        "output_formats": of_settings(OUTPUT_FORMATS),
        "op_state": of_settings(OP_STATE),
        "settings": _words([json.dumps(one) if one else "" for one in further], which),
        "lengths": [index.text("lengths", number) for number in lengths.tolist()],
        **numbers,
        "degrees": index.arrays["degrees"][rows],
        "sessions": sessions,
        "warnings": _words([index.text("warnings", one) for one in warned.tolist()], warnings),
        "channel": _words(channels, np.minimum(sessions, 2)),
    }
    table = pa.table(columns, schema=SCHEMA)
    if not with_product:
        return table
    what = f"{block.kernel}: expected a product for a condition on m, n or k"
    if len(ranks) < 2 or ranks[0] < 2 or not outputs or outputs[0] < 2:
        raise BadInput(what)
    dims, at = sizes.T, sum(ranks)
    _, m, n, k = product_sizes(dims[: ranks[0]], dims[at : at + outputs[0]])
    is_plain = ranks[1] in (2, 3) and block.inputs[1][0] == block.inputs[0][0]
    second = sizes[:, sum(ranks[:2]) - 2 : sum(ranks[:2])]
    if is_plain and (np.sort(second) != np.sort(np.stack([k, n], axis=1))).any():
        raise BadInput(what)
    for name, values in zip(_PRODUCT, (m, n, k), strict=True):
        table = table.append_column(name, pa.array(values))
    return table


def _words(texts: Sequence[str], which: npt.NDArray[Any]) -> pa.Array:
    """Return the texts of these numbers. A dictionary has each text once: pandas refuses others."""
    numbers: dict[str, int] = {}
    own = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(own[which], pa.int32()), pa.array(list(numbers), pa.string())
    )


def _shapes(sizes: npt.NDArray[np.int64], ranks: Sequence[int]) -> pa.Array:
    """Return the shapes of rows of sizes, as lists of lists."""
    count = len(sizes)
    ends = np.cumsum(np.tile(ranks, count), dtype=np.int64) if ranks else np.empty(0, np.int64)
    inner = pa.ListArray.from_arrays(
        pa.array(np.append(0, ends), pa.int32()), pa.array(sizes.ravel(), pa.int64())
    )
    outer = pa.array(np.arange(count + 1) * len(ranks), pa.int32())
    return pa.ListArray.from_arrays(outer, inner)
