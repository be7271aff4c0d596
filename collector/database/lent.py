"""The pairs of sessions that version directories lend each other.

The variance of one stack is estimated with a prior that is learnt from other version directories of
the same kind of device. Their pairs of sessions are all that it depends on, so each directory
stores a bounded number of its own. A merge reads these instead of the measurements of the others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from collector.codec.canonical import short_hash
from collector.codec.errors import DamagedObject
from collector.quality.evidence import Pairs
from collector.quality.variance import ENOUGH_PAIRS, learn
from collector.quality.variance_prior import VariancePrior, prior_of

# A prior is learnt from the directories with the most pairs: more of them change little, and the
# time of a merge would grow with their number.
MOST_LENDERS = 8

_FLOATS = ("difference", "repeats_variance", "spread_squared", "weights")
_MEMBERS = ("sessions", "devices")
SCHEMA = pa.schema(
    [
        *(("over_ranks", pa.bool_()), ("family", pa.large_string())),
        *((name, pa.float64()) for name in _FLOATS),
        *((f"{name}_{at}", pa.int64()) for name in _MEMBERS for at in (0, 1)),
    ]
)


@dataclass(frozen=True, slots=True)
class LentPairs:
    """The pairs of a version directory, of kernels and of collectives: at most ENOUGH_PAIRS of
    each."""

    kernels: Pairs
    collectives: Pairs

    @classmethod
    def of(cls, kernels: Pairs, collectives: Pairs) -> "LentPairs":
        """Return the pairs to lend among all pairs of a version directory."""
        return cls(*(p.only(np.arange(len(p)) < ENOUGH_PAIRS) for p in (kernels, collectives)))

    def pairs(self, over_ranks: bool) -> Pairs:
        return self.collectives if over_ranks else self.kernels

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.kernels), len(self.collectives)


def pairs_table(lent: LentPairs) -> pa.Table:
    """Return the pairs as a table, by SCHEMA, which `lent_pairs` reads back exactly."""
    both = (lent.kernels, lent.collectives)
    columns = {
        "over_ranks": np.repeat([False, True], lent.counts),
        "family": [family for pairs in both for family in pairs.families],
        **{name: np.concatenate([getattr(p, name) for p in both]) for name in _FLOATS},
        **{
            f"{name}_{at}": np.concatenate([getattr(p, name)[:, at] for p in both])
            for name in _MEMBERS
            for at in (0, 1)
        },
    }
    return pa.table(columns, schema=SCHEMA)


def lent_pairs(table: pa.Table, *, key: str) -> LentPairs:
    """Return the pairs of a table. Raises DamagedObject, naming the key, for other columns."""
    try:
        table = table.select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise DamagedObject(f"unexpected columns in a table: {error}", path=key) from error
    if any(column.null_count for column in table.columns):
        raise DamagedObject("expected no empty cell in a table of pairs", path=key)
    of = table["over_ranks"].to_numpy()
    return LentPairs(_pairs(table.filter(pa.array(~of))), _pairs(table.filter(pa.array(of))))


def _pairs(table: pa.Table) -> Pairs:
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "family"}
    members = {
        name: np.stack([columns[f"{name}_0"], columns[f"{name}_1"]], axis=1) for name in _MEMBERS
    }
    unknown = np.full(table.num_rows, -1)  # groups and cases have no meaning elsewhere
    return Pairs(
        **{name: columns[name] for name in _FLOATS},
        **members,
        families=table["family"].to_pylist(),
        groups=unknown,
        cases=unknown,
    )


def lending_kind(path: str, over_ranks: bool) -> str:
    """Return the kind of device, or of the library of its ranks, of a version directory."""
    return prior_of(path.partition("/")[0], over_ranks=over_ranks).kind


def lenders(path: str, counts: Mapping[str, int], *, over_ranks: bool) -> tuple[str, ...]:
    """Return the version directories that lend pairs to one, given the number of pairs of each.

    Example: of ten directories of one kind of device, the eight others with the most pairs."""
    kind = lending_kind(path, over_ranks)
    others = [
        p for p, n in counts.items() if n and p != path and lending_kind(p, over_ranks) == kind
    ]
    others.sort(key=lambda other: (-counts[other], other))
    return tuple(sorted(others[:MOST_LENDERS]))


def possible_lenders(
    counts: Mapping[str, int], kinds: Collection[str], *, over_ranks: bool
) -> set[str]:
    """Return all directories that lend pairs to any directory of these kinds."""
    found = set[str]()
    for kind in kinds:
        own = [p for p, n in counts.items() if n and lending_kind(p, over_ranks) == kind]
        own.sort(key=lambda other: (-counts[other], other))
        found.update(own[: MOST_LENDERS + 1])  # one of them may be the borrower
    return found


@dataclass(frozen=True, slots=True)
class Priors:
    """The priors of version directories, given the pairs of all that may lend some.

    Directories with the same lenders share a prior, which is computed once."""

    pairs: Mapping[str, LentPairs]
    _known: dict[tuple[object, ...], VariancePrior] = field(default_factory=dict)

    def prior(self, path: str, *, over_ranks: bool) -> VariancePrior:
        counts = {other: lent.counts[over_ranks] for other, lent in self.pairs.items()}
        chosen = lenders(path, counts, over_ranks=over_ranks)
        own = prior_of(path.partition("/")[0], over_ranks=over_ranks)
        key = (own.kind, over_ranks, chosen)
        if key not in self._known:
            lent = [self.pairs[other].pairs(over_ranks) for other in chosen]
            self._known[key] = learn(lent, own)
        return self._known[key]

    def digest(self, path: str) -> str:
        """Return a hash of both priors of a version directory."""
        return digest(*(self.prior(path, over_ranks=over_ranks) for over_ranks in (False, True)))


def digest(kernels: VariancePrior, collectives: VariancePrior) -> str:
    """Return a hash of the learnt figures of the priors of kernels and of collectives."""
    figures = [
        [prior.kind, prior.ratio, prior.tail_degrees, prior.device_spread, prior.families]
        for prior in (kernels, collectives)
    ]
    return short_hash(figures, 16)
