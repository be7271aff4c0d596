"""What may explain that some loads of a range have a launch: comparisons of a term of the load.

A candidate is a comparison of one term with a border, or two of them with `and` or `or`. Borders
are 0 and 1, and, where a term separates the loads that have a launch from the others, numbers
between: each further load halves what is left (bisection).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collector.ops.expression import Expression

Numbers = Mapping[str, int]
Truth = npt.NDArray[np.bool_]
Values = npt.NDArray[np.int64]

_BORDERS = (0, 1)
# In the order in which they are preferred where they are equal on a whole range.
_TERMS = (
    *("sampled", "tokens", "empty", "part", "earlier", "whole - tokens", "decodes"),
    *("requests - decodes", "chunks", "chunks - decodes", "whole - sampled"),
)


class Terms:
    """Values of terms for loads: those of recorded ones, and those of a whole range."""

    def __init__(self, recorded: Sequence[Numbers], space: Sequence[Numbers]) -> None:
        self._names = (*recorded, *space)
        self.recorded = len(recorded)
        self._known: dict[str, Values] = {}

    def all(self, text: str) -> Values:
        """Return the values of a text for the recorded loads, then for the range."""
        if (found := self._known.get(text)) is None:
            expression = Expression(text)
            found = np.array([expression.value(one) for one in self._names], dtype=np.int64)
            self._known[text] = found
        return found

    def of_recorded(self, text: str) -> Values:
        return self.all(text)[: self.recorded]

    def of_space(self, text: str) -> Values:
        return self.all(text)[self.recorded :]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A condition, and in which loads it is true: recorded ones, then those of the range."""

    text: str
    truth: Truth


class Conditions:
    """The candidates of a range with these loads."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def fitting(self, is_there: Sequence[bool]) -> Sequence[Candidate]:
        """Return what is true in exactly these recorded loads, the first of those that agree on the
        range; comparisons of one term precede others."""
        expected = np.array(is_there, dtype=np.bool_)
        found: dict[bytes, Candidate] = {}
        singles = [*self._comparisons, *self._at_borders(expected)]
        for one in (*singles, *self._pairs(singles, expected)):
            if (one.truth[: len(expected)] == expected).all():
                found.setdefault(one.truth.tobytes(), one)
        return tuple(found.values())

    @cached_property
    def _comparisons(self) -> Sequence[Candidate]:
        return [one for term in _TERMS for at in _BORDERS for one in self._of_border(term, at)]

    def _of_border(self, term: str, border: int) -> Iterator[Candidate]:
        values = self._terms.all(term)
        yield Candidate(f"{term} > {border}", values > border)
        yield Candidate(f"{term} < {border + 1}", values <= border)
        if border:
            yield Candidate(f"{term} == {border}", values == border)
            yield Candidate(f"{term} != {border}", values != border)

    def _at_borders(self, expected: Truth) -> Iterator[Candidate]:
        """Yield comparisons with the borders that separate these loads from the others: the least
        one, the most and the middle."""
        if expected.all() or not expected.any():
            return
        for term in _TERMS:
            values = self._terms.of_recorded(term)
            for is_above in (True, False):
                above, below = values[expected == is_above], values[expected != is_above]
                low, high = int(below.max()), int(above.min()) - 1
                if low > max(_BORDERS) and low <= high:
                    for border in dict.fromkeys((high, low, (low + high) // 2)):
                        sign, number = (">", border) if is_above else ("<", border + 1)
                        truth = (self._terms.all(term) > border) == is_above
                        yield Candidate(f"{term} {sign} {number}", truth)

    @staticmethod
    def _pairs(singles: Sequence[Candidate], expected: Truth) -> Iterator[Candidate]:
        """Yield pairs that are true in the expected loads: with `and`, of comparisons that are true
        in all of these, with `or`, of those that are true in no other."""
        count = len(expected)
        distinct = list({one.truth.tobytes(): one for one in reversed(singles)}.values())[::-1]
        distinct = [one for one in distinct if one.truth.any() and not one.truth.all()]
        for word, parts in (
            ("and", [one for one in distinct if one.truth[:count][expected].all()]),
            ("or", [one for one in distinct if not one.truth[:count][~expected].any()]),
        ):
            if len(parts) < 2:
                continue
            truths = np.array([one.truth for one in parts])
            for at, one in enumerate(parts):
                others = truths[at + 1 :]
                both = others & one.truth if word == "and" else others | one.truth
                fits = (both[:, :count] == expected).all(axis=1)
                for other in np.flatnonzero(fits):
                    text = f"{one.text} {word} {parts[at + 1 + other].text}"
                    yield Candidate(text, both[other])
