"""Layouts of attention's tensors, letter by letter: B batch, T all tokens, S tokens of a request,
N heads, D numbers of a head, H = N * D.

`BNSD_NBSD` takes queries as BNSD and gives its output as NBSD.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from collector.ops.parts.shares import running
from collector.ops.slots import Shape

# Those that take queries without batch follow each other, in the order in which they are tried
# for a row that names no layout.
LAYOUTS = ("TND", "TND_NTD", "BSH", "BNSD", "BSND", "BNSD_NBSD", "BSND_NBSD", "BNSD_BSND")
MLA_LAYOUTS = ("TND", "TND_NTD", "BSH", "BNSD_NBSD", "BSND_NBSD", "BNSD", "BSND")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a batch: its place, and where its queries lie among all tokens."""

    index: int
    start: int
    queries: int
    keys: int


def requests_of(queries: Shape, keys: Shape) -> Iterator[Request]:
    """Requests of so many queries and keys, whose queries lie one behind the other."""
    starts = (0, *running(queries))
    for index, (some, held) in enumerate(zip(queries, keys, strict=True)):
        yield Request(index, starts[index], some, held)


def letters_in(layout: str) -> str:
    """The letters of queries, and of keys that lie in no pages."""
    return layout.partition("_")[0]


def letters_out(layout: str) -> str:
    """The letters of the output."""
    first, _, last = layout.partition("_")
    return last or first


def sizes_by_letter(letters: str, shape: Shape) -> dict[str, int] | None:
    """What each letter stands for in a shape; None where the shape has other dimensions."""
    if len(shape) != len(letters) or not all(shape):
        return None
    return dict(zip(letters, shape, strict=True))


def shape_of(letters: str, sizes: dict[str, int]) -> Shape:
    """The shape with these sizes; H is N * D."""
    known = {**sizes, "H": sizes["N"] * sizes["D"]}
    return tuple(known[letter] for letter in letters)


def part_of(tensor: Any, letters: str, request: Request, heads: int) -> Any:
    """The request's queries in a tensor of all, as heads, tokens, size: a view to read or write."""
    if letters == "BSH":
        tensor, letters = tensor.unflatten(-1, (heads, -1)), "BSND"
    if "T" in letters:
        part = tensor.narrow(letters.index("T"), request.start, request.queries)
    else:
        part = tensor.select(letters.index("B"), request.index)
        letters = letters.replace("B", "")
        part = part.narrow(letters.index("S"), 0, request.queries)
    tokens = "T" if "T" in letters else "S"
    return part.permute(*(letters.index(letter) for letter in ("N", tokens, "D")))
