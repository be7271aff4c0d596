"""Numbers, conditions and lists of a range as texts of the load, and what else fits its loads.

What fits the recorded loads and differs in another load of the range is a rival: `Solver.further`
chooses loads that tell rivals apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from collector.codec.errors import OpmeterError
from collector.ops.expression import Expression, dims_of
from collector.workloads.deployments import load_lists
from collector.workloads.serving import Batch
from tools.recordings.candidates import Conditions, Terms, Values
from tools.recordings.spaces import is_recordable

_MOST_CHOICES = 64  # of a token among experts
_MOST_FURTHER = 12  # loads of a range that are chosen at once
_KEYS = "min(tokens, tokens // {} + requests)"
_KEYS_OF_PROMPTS = "min(tokens - decodes, (tokens - decodes) // {} + requests - decodes)"
_TERMS = (
    *("tokens", "whole", "part", "sampled", "requests", "empty", "whole - tokens"),
    *("requests + (whole > tokens)", "whole - sampled", "decodes", "earlier"),
    *("tokens - decodes", "requests - decodes", "requests - empty"),
    *("requests - decodes + (whole > tokens)", "whole - decodes"),
    # states of new prompts, and of the tokens that pad to the ranks
    "(earlier < 1) * (requests - decodes) + (whole > tokens)",
    # rows for keys that are made of 4 and of 128 tokens
    *(_KEYS.format(4), _KEYS.format(128), _KEYS_OF_PROMPTS.format(4), _KEYS_OF_PROMPTS.format(128)),
)
# Columns of the tables of kinds of attention: blocks of 128 keys of 4 and of 128 tokens, of 128
# tokens, and of 32 and 8 tokens. A request of the engine may have four times the tokens of a load,
# so that the first table has a column for each page.
_WIDTHS = (
    *("table_width", "ceil_div(table_width, 32)", "4 * table_width"),
    *("16 * table_width", "64 * table_width"),
)
_OF_ALL = ("chunks", "long_chunks", "longer_chunks", "longest_chunks")
_CHUNKS = (*_OF_ALL, *(f"{chunks} - decodes" for chunks in _OF_ALL))  # whose multiples are sizes


class NotSolved(OpmeterError):
    """A number follows from no expression of the load."""


class Sizes:
    """What is solved of one launch: the loads that have it, its written shapes, and rivals of its
    sizes. The sizes of a load without the launch, or with nothing to write, do not matter."""

    def __init__(self) -> None:
        self.when, self.written = "1", ""
        self.rivals: list[Values] = []


class Solver:
    """Solves numbers, conditions and lists of the recorded loads of a range.

    names   the numbers of each recorded load, `lists` its lists
    batches  the loads of the range, and their numbers; none where nothing has to be determined"""

    def __init__(
        self,
        names: Sequence[Mapping[str, int]],
        lists: Sequence[Mapping[str, tuple[int, ...]]],
        batches: Sequence[Batch],
        space: Sequence[Mapping[str, int]],
        ranks: int,
    ) -> None:
        self.names, self._lists, self._batches, self._ranks = names, lists, batches, ranks
        self._terms = Terms(names, space)
        self._conditions = Conditions(self._terms)
        self._of_loads: dict[tuple[bool, ...], str] = {}
        self._ambiguous: dict[
            frozenset[bytes], Values
        ] = {}  # a row for each rival, a column for each load
        self._sizes = Sizes()

    @property
    def has_space(self) -> bool:
        return bool(self._batches)

    @contextmanager
    def sizes(self) -> Iterator[Sizes]:
        """Solve the sizes of one launch in the block."""
        self._sizes = found = Sizes()
        yield found
        if not (found.rivals and self.has_space):
            return
        mask = self._terms.of_space(found.when) != 0
        if slots := [dims_of(one) for one in found.written.strip('"').split(";") if one]:
            sizes = [[self._terms.of_space(size.text) != 0 for size in slot] for slot in slots]
            mask &= np.any([np.all(slot, axis=0) for slot in sizes], axis=0)
        for rivals in found.rivals:
            self._add(np.where(mask, rivals, 0))

    def _add(self, rivals: Values) -> None:
        rows = {row.tobytes(): row for row in rivals}
        if len(rows) > 1:
            self._ambiguous.setdefault(frozenset(rows), np.array(list(rows.values())))

    def condition(self, is_there: Sequence[bool], what: str) -> str:
        """Return the condition that is true for these loads. Raises NotSolved without one."""
        key = tuple(is_there)
        if key not in self._of_loads:
            fitting = self._conditions.fitting(is_there)
            if not fitting:
                pairs = zip(self._terms_of_loads, is_there, strict=True)
                lacks = [one for one, there in pairs if not there]
                raise NotSolved(f"{what}: not launched by loads of {'; '.join(lacks)}")
            self._of_loads[key] = fitting[0].text
            if self.has_space:
                truths = np.array([one.truth[len(key) :] for one in fitting])
                self._add(truths.astype(np.int64))
        return self._of_loads[key]

    @cached_property
    def _terms_of_loads(self) -> Sequence[str]:
        shown = ("tokens", "requests", "empty", "decodes", "earlier")
        return [", ".join(f"{one[name]} {name}" for name in shown) for one in self.names]

    def number(self, values: Sequence[int], at: Sequence[int], what: str) -> str:
        """Return the expression with these values for these recorded loads. Raises NotSolved."""
        text = solve(values, [self.names[one] for one in at], what)
        if self.has_space and (len(set(values)) > 1 or text.isdecimal()):
            rivals = self._rivals(values, list(at), text)
            self._sizes.rivals += [rivals] if len(rivals) > 1 else []
        return text

    def _rivals(self, values: Sequence[int], at: Sequence[int], text: str) -> Values:
        """Return the values of all that fits, for each load of the range."""
        expected = np.array(values, dtype=np.int64)
        found = [self._terms.of_space(text)]
        for term in (*_TERMS, *_CHUNKS):
            recorded, space = self._terms.of_recorded(term)[at], self._terms.of_space(term)
            other = int(np.argmax(recorded != recorded[0]))
            if recorded[other] == recorded[0]:
                if text.isdecimal() and (recorded == expected).all():
                    found.append(space)
                continue
            step, change = recorded[other] - recorded[0], expected[other] - expected[0]
            factor, rest = divmod(int(change), int(step))
            offset = int(expected[0]) - factor * int(recorded[0])
            if rest or not factor or (offset and term in _CHUNKS):
                continue
            if (factor * recorded + offset == expected).all():
                found.append(factor * space + offset)
        return np.array(found)

    def list_name(self, texts: Sequence[tuple[str, int]], what: str) -> str:
        """Return the name of the list that these recorded loads have, of an equal one first."""
        for may_pad in (False, True):
            found = [
                name
                for name in self._lists[0]
                if all(
                    _is_list(text.split(","), self._lists[at][name], may_pad) for text, at in texts
                )  # fmt: skip
            ]
            if len(found) > 1 and self.has_space:
                self._sizes.rivals.append(np.array([self._codes[name] for name in found]))
            if found:
                return found[0]
        raise NotSolved(f"{what}: unknown list {texts[0][0][:80]}")

    @cached_property
    def _codes(self) -> Mapping[str, Values]:
        """For each list, a number for each load of the range; equal lists have equal numbers."""
        known: dict[tuple[int, ...], int] = {}
        found: dict[str, list[int]] = {}
        for batch in self._batches:
            for name, one in load_lists(batch, self._ranks).items():
                found.setdefault(name, []).append(known.setdefault(one, len(known)))
        return {name: np.array(codes) for name, codes in found.items()}

    def further(self) -> tuple[Sequence[Batch], int]:
        """Return loads that tell rivals apart, cheap ones first, and how many rivals none tells."""
        if not self._ambiguous:
            return (), 0
        may_record = np.array([is_recordable(one) for one in self._batches])
        splits = np.array([_split(one) for one in self._ambiguous.values()]) * may_record
        cost = np.array([one.tokens + 40 * one.mixed_decodes for one in self._batches])
        is_left = splits.any(axis=1)
        left, chosen = int((~is_left).sum()), list[Batch]()
        while is_left.any() and len(chosen) < _MOST_FURTHER:
            best = int(np.argmax(splits[is_left].sum(axis=0) - 1e-6 * cost))
            chosen.append(self._batches[best])
            is_left &= splits[:, best] == 0
        return tuple(chosen), left


def _split(rivals: Values) -> npt.NDArray[np.float64]:
    """Return how evenly each load divides the rivals: 0 where they agree, a half at most."""
    share = (rivals == rivals[0]).mean(axis=0)
    return np.asarray(np.minimum(share, 1 - share))


def solve(values: Sequence[int], names: Sequence[Mapping[str, int]], what: str) -> str:
    """Return the expression that has these values, with the names of each load.

    A constant that is a multiple of the pages or states is one of them. Raises NotSolved without
    an expression."""
    if len(set(values)) == 1:
        number = values[0]
        for name in ("pages", "states", "pool"):
            if number and (unit := names[0].get(name)) and number % unit == 0:
                return _times(number // unit, name)
        widths = _WIDTHS if names[0].get("pool") else _WIDTHS[:1]
        is_width = (text for text in widths if Expression(text).value(names[0]) == number)
        return next(is_width, str(number))
    best: tuple[bool, bool, int, str] | None = None
    for order, term in enumerate((*_TERMS, *_CHUNKS)):
        terms = [Expression(term).value(one) for one in names]
        if (found := _affine(terms, values)) is None:
            continue
        factor, offset = found
        if offset and term in _CHUNKS:
            continue
        text = f"{offset} + {_times(factor, term)}" if offset else _times(factor, term)
        is_multiple = not offset and factor != 1
        best = min(filter(None, (best, (bool(offset), is_multiple, order, text))))
    if best is not None:
        return best[-1]
    if (rows := _rows_of_first_rank(values, names)) is not None:
        return rows
    raise NotSolved(f"{what}: no expression has the values {values}")


def _rows_of_first_rank(values: Sequence[int], names: Sequence[Mapping[str, int]]) -> str | None:
    """Return a multiple of the rows that the first rank gets for its experts. Every rank sends its
    choices in equal parts to all experts, and what is left to the first ones."""
    experts, ranks = names[0].get("experts", 0), names[0].get("expert_ranks", 1)
    if not experts or experts % ranks:
        return None
    held = experts // ranks
    for choices in range(1, _MOST_CHOICES + 1):
        sent = f"{choices} * part"
        text = f"{ranks} * ({held} * ({sent} // {experts}) + min({held}, {sent} % {experts}))"
        rows = [Expression(text).value(one) for one in names]
        sizes = {Fraction(value, row) for value, row in zip(values, rows, strict=True)}
        if len(sizes) == 1 and (size := sizes.pop()).denominator == 1:
            return text if size == 1 else f"{size} * ({text})"
    return None


def _times(factor: int, term: str) -> str:
    if factor == 1:
        return term
    return f"{factor} * {term if term.isidentifier() else f'({term})'}"


def _affine(terms: Sequence[int], values: Sequence[int]) -> tuple[int, int] | None:
    """Return factor and offset of an affine function; None if there is none."""
    for (x, v), (y, w) in combinations(zip(terms, values, strict=True), 2):
        if x == y:
            continue
        factor, rest = divmod(w - v, y - x)
        offset = v - factor * x
        is_same = all(factor * t + offset == n for t, n in zip(terms, values, strict=True))
        return (factor, offset) if not rest and factor and is_same else None
    return None


def _is_list(recorded: Sequence[str], derived: Sequence[int], may_pad: bool) -> bool:
    """Return whether lists agree; requests that pad may be recorded with 0 keys."""
    pairs = zip(recorded, map(str, derived), strict=False)
    return len(recorded) == len(derived) and all(
        one == other or (may_pad and one == "0") for one, other in pairs
    )
