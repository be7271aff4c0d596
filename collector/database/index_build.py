"""Building the index of a version directory from its case records and displayed intervals.

The index is a function of these two tables: `db verify` builds it again and compares the bytes.
"""

from collections import defaultdict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import canonical_json
from collector.database.curves import read_forms
from collector.database.index import IndexBlock, Sizes, hashes_of, index_file
from collector.model.vocabulary import INPUT_FORMATS, OUTPUT_DTYPES, OUTPUT_FORMATS
from collector.ops.sizes import SizeGroup, length_lists, list_sizes, size_group
from collector.ops.together import lengths_of

_Signature = tuple[
    str, tuple[tuple[str, int], ...], tuple[int, ...], tuple[str, ...], tuple[int, ...]
]
_INTERVAL = {"mean_us": "mean_us", "low_us": "stack_low_us", "high_us": "stack_high_us"}
_NUMBERS = {**_INTERVAL, "degrees": "stack_degrees", "sessions": "sessions"}


def index_bytes(cases: pa.Table, intervals: pa.Table, version_path: str) -> tuple[bytes, int]:
    """Return the index of a version directory, and the number of its rows.

    Cases without a displayed interval, and cases whose inputs are not known, are not in it."""
    shown = intervals.filter(pc.equal(intervals["version_path"], version_path))
    own = cases.filter(pc.equal(cases["version_path"], version_path))
    place = pc.index_in(own["case"], value_set=shown["case"].combine_chunks())
    own, place = own.filter(pc.is_valid(place)), place.drop_null()
    shown = shown.take(place)  # row by row the same cases as `own`
    blocks, order, sizes, texts = _sorted(own)
    shown = shown.take(pa.array(order))
    numbers = {name: shown[column].to_numpy() for name, column in _NUMBERS.items()}
    warnings = shown["warnings"].combine_chunks().dictionary_encode()
    pool, rank = _numbered(warnings.dictionary.to_pylist())
    arrays = {
        **numbers,
        "hash": _hashes(blocks, sizes),
        "sizes": sizes,
        "settings": texts[0][1],
        "lengths": texts[1][1],
        "warnings": rank[warnings.indices.to_numpy()],
        "case": np.array(shown["case"].to_pylist(), "S20"),
    }
    pools = {"settings": texts[0][0], "lengths": texts[1][0], "warnings": pool}
    return index_file(blocks, arrays, pools), len(order)


def _sorted(
    cases: pa.Table,
) -> tuple[list[IndexBlock], npt.NDArray[np.int64], Sizes, list[tuple[list[str], Sizes]]]:
    """Return the blocks; the places of the cases, block by block and sorted by hash; their sizes as
    one array; and the settings and lengths of each case, as texts and their numbers."""
    found: dict[_Signature, list[tuple[npt.NDArray[np.int64], Sizes]]] = defaultdict(list)
    texts: tuple[list[str], list[str]] = ([""] * cases.num_rows, [""] * cases.num_rows)
    forms, alone = read_forms(cases)
    parts = [(places, form.first, form.lengths) for places, form in forms]
    parts += [(np.array([at]), case, np.array([lengths_of(case)], np.int64)) for at, case in alone]
    for places, case, sizes in parts:
        if case.inputs is None:
            continue
        group, lists = size_group(case), length_lists(case)
        whole = np.tile(np.array(list_sizes(lists), np.int64), (len(places), 1))
        found[_signature(group)].append((places, np.hstack([sizes, whole])))
        settings, listed = _settings(group), _spelled(lists)
        for at in places.tolist():
            texts[0][at], texts[1][at] = settings, listed
    pools = [_numbered(part) for part in texts]
    blocks: list[IndexBlock] = []
    order: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    flat: list[Sizes] = [np.empty(0, np.int64)]
    begin = at_size = 0
    for (kernel, inputs, outputs, names, free), rows in sorted(found.items()):
        places = np.concatenate([one for one, _ in rows])
        sizes = np.concatenate([one for _, one in rows])
        end = begin + len(places)
        block = IndexBlock(kernel, inputs, outputs, names, free, begin, end, at_size)
        keys = (places, pools[1][1][places], pools[0][1][places])
        by_hash = np.lexsort((*keys, _key_hashes(block, sizes)))
        blocks.append(block)
        order.append(places[by_hash])
        flat.append(sizes[by_hash].ravel())
        begin, at_size = end, at_size + sizes.size
    places = np.concatenate(order)
    # Texts of cases that are in no block are not written.
    used = [_numbered([pool[number] for number in ranks[places]]) for pool, ranks in pools]
    return blocks, places, np.concatenate(flat), used


def _key_hashes(block: IndexBlock, sizes: Sizes) -> npt.NDArray[np.uint64]:
    """Return the hashes of the sizes of inputs (rows, sizes) by which rows are found."""
    own = sizes[:, : block.key_width]
    if block.free:
        own = own.copy()
        own[:, [at for at in block.free if at < block.key_width]] = 0
    return hashes_of(own)


def _signature(group: SizeGroup) -> _Signature:
    """Return what all rows of a block share."""
    inputs = tuple((dtype, rank) for dtype, _, rank in group.inputs)
    outputs = tuple(rank for _, _, rank in group.outputs)
    return group.kernel, inputs, outputs, group.lengths, group.free


def _settings(group: SizeGroup) -> str:
    """Return what distinguishes the rows of a block besides their sizes."""
    cells = {
        **dict(group.settings),
        INPUT_FORMATS: ";".join(layout for _, layout, _ in group.inputs),
        OUTPUT_DTYPES: ";".join(dtype for dtype, _, _ in group.outputs),
        OUTPUT_FORMATS: ";".join(layout for _, layout, _ in group.outputs),
    }
    return canonical_json({name: text for name, text in cells.items() if text}).decode()


def _spelled(lengths: dict[str, list[float]]) -> str:
    return canonical_json(lengths).decode() if lengths else ""


def _hashes(blocks: list[IndexBlock], sizes: Sizes) -> npt.NDArray[np.uint64]:
    found = [np.empty(0, np.uint64)]
    for block in blocks:
        rows = block.end - block.begin
        own = sizes[block.at : block.at + rows * block.width].reshape(rows, block.width)
        found.append(_key_hashes(block, own))
    return np.concatenate(found)


def _numbered(texts: list[str]) -> tuple[list[str], Sizes]:
    """Return the distinct texts, sorted, and the number of each text among them."""
    pool = sorted(set(texts))
    numbers = {text: at for at, text in enumerate(pool)}
    return pool, np.array([numbers[text] for text in texts], np.int64)
