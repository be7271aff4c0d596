"""Which message sizes are measured: grids by name, and what a user writes."""

from collections.abc import Iterable

from collector.errors import BadInput


def powers_of_two(first: int, last: int) -> tuple[int, ...]:
    """first, 2 first, 4 first ... up to last, in bytes."""
    found = []
    size = first
    while size <= last:
        found.append(size)
        size *= 2
    return tuple(found)


# What Qwen3-32B and DeepSeek-V3 sent on Atlas A3 under vLLM-Ascend 0.15 to 0.18, prefill and
# decode: counted in step traces by the consumer's maintainers (msmodeling, run_comm_bench.sh).
_OF_16_DIES = (
    19008, 75968, 163840, 284880, 303872, 327680, 588752, 607744, 1320960, 2641920, 2652160,
    3952640, 5263360, 9185280, 22435840, 41943040,
)  # fmt: skip
_OF_8_DIES = (
    272, 528, 1152, 3072, 7168, 14336, 32320, 64640, 74880, 129280, 149760, 223488, 294912, 465920,
    595968, 786432, 946176, 1863680, 2781184, 3670016,
)  # fmt: skip

SIZE_GRIDS = {
    "full": powers_of_two(128, 512 << 20),
    "quick": (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28),
    "production": tuple(sorted({*_OF_16_DIES, *_OF_8_DIES})),
}


def chosen_sizes(words: Iterable[str], largest_bytes: int | None = None) -> tuple[int, ...]:
    """Sizes in bytes, ascending, each once: names of SIZE_GRIDS and numbers, up to a largest.

    Raises BadInput for a word that is neither, and where nothing is left.
    """
    found: set[int] = set()
    for word in words:
        if word in SIZE_GRIDS:
            found.update(SIZE_GRIDS[word])
        elif word.isascii() and word.isdigit() and int(word) > 0:
            found.add(int(word))
        else:
            names = ", ".join(SIZE_GRIDS)
            raise BadInput(f"size: expected a number of bytes or one of {names}, got {word!r}")
    kept = tuple(size for size in sorted(found) if largest_bytes is None or size <= largest_bytes)
    if not kept:
        raise BadInput("expected at least one message size to measure, got none")
    return kept
