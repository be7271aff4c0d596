"""The same for tables. A table is recognised by its identity, which is kept if it was read from the
same bytes or joined from the same tables. A shown version is recognised by its content too, since
it is computed from the state as made and as read.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from collector.database import (
    merge,
    plan_state,
    query,
    snapshot,
    snapshot_writing,
    state,
    verify,
    verify_version,
    view,
)
from collector.database.lent import LentPairs
from collector.database.state import State

_Which = Callable[..., Hashable]


class Tables:
    """The cached values of one simulation."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[Any, Any]] = {}
        self._contents: dict[int, tuple[pa.Table, bytes]] = {}

    def known(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """The module and name of each replaced function, and its replacement."""
        by: tuple[tuple[tuple[Any, ...], str, _Which], ...] = (
            ((snapshot,), "_table", lambda data, schema, key, path: (data, id(schema), key)),
            ((snapshot_writing,), "parquet_bytes", self._content),
            ((snapshot_writing,), "parquet_bytes_of", self._of_groups),
            ((plan_state,), "_measurements", _of_parts),
            ((plan_state,), "case_rows", _of_records),
            ((plan_state,), "profile_rows", _of_records),
            ((state,), "_joined", lambda schema, key, tables: (key, *map(id, tables))),
            ((State,), "measurements_beyond", _of_measurements),
            ((query, verify), "distinct_pairs", lambda table, names: (id(table), names)),
            ((view, verify_version, snapshot_writing), "digest_of_rows", self._content),
            ((view, verify, verify_version, merge), "intervals_of", self._contents_of),
            ((merge, view, verify_version), "view_of", self._shown),
        )
        for places, name, which in by:
            found = self._remembering(getattr(places[0], name), which)
            yield from ((place, name, found) for place in places)

    def _remembering(self, call: Callable[..., Any], which: _Which) -> Callable[..., Any]:
        def once(*given: Any, **options: Any) -> Any:
            given = tuple(_whole(one) for one in given)
            requested = (call, which(*given, **options))
            if requested not in self._found:
                # Arguments are kept alive, so that no other object gets their identity.
                self._found[requested] = (_whole(call(*given, **options)), (given, options))
            return self._found[requested][0]

        return once

    def _shown(self, of: State, *, intervals: Any = None, **options: Any) -> Hashable:
        """Return the tree of a state, whose intervals may be given: mostly they are its own."""
        known = view.intervals_of(of) if intervals is None else intervals
        return (self._contents_of(of), id(known), *options.items())

    def _contents_of(self, of: State) -> Hashable:
        tables = (of.measurements, of.cases, of.profiles)
        lent = ((path, one.counts, *_bytes(one)) for path, one in sorted(of.elsewhere.items()))
        return (*map(self._content, tables), *sorted(of.versions.items()), *lent)

    def _of_groups(self, groups: Iterable[pa.Table], schema: pa.Schema) -> Hashable:
        return (*map(self._content, groups), schema.to_string())

    def _content(self, table: pa.Table) -> bytes:
        if id(table) not in self._contents:
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, table.schema) as stream:
                stream.write_table(table.combine_chunks())
            self._contents[id(table)] = (table, out.getvalue().to_pybytes())
        return self._contents[id(table)][1]


def _bytes(lent: LentPairs) -> Iterator[bytes]:
    for pairs in (lent.kernels, lent.collectives):
        yield pairs.difference.tobytes()
        yield pairs.sessions.tobytes() + pairs.devices.tobytes()


def _whole(one: Any) -> Any:
    """Make an iterator repeatable."""
    return tuple(one) if isinstance(one, Iterator) else one


def _of_parts(plan: Any, attempt: Any, records: Iterable[Any], cases: Any) -> Hashable:
    """Return the rows of a shard's parts, whose cases follow from the plan."""
    final = frozenset(attempt.manifest.final.items())
    return (id(plan), attempt.key, attempt.parts, final, *map(id, records))


def _of_records(plan: Any, records: Iterable[Any]) -> Hashable:
    return (id(plan), *map(id, records))


def _of_measurements(one: State, base: State) -> Hashable:
    return (id(one.measurements), id(base.measurements))
