"""The content of the database's head that planning and the controller need, read in parts.

Only the needed columns of each file are read, in batches, so that the memory grows with the number
of requested cases: a database of a million measurements exceeds the memory limit of a controller.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import DamagedObject
from collector.database import query, snapshot
from collector.database.columns import text_of_measurements
from collector.database.commits import Commit
from collector.database.intervals import CaseInterval
from collector.database.manifest import (
    SnapshotManifest,
    StoredFile,
    own_files,
    read_file,
    read_manifest,
    read_version_files,
)
from collector.database.parquet import parquet_batches
from collector.database.plans import MergedPlan
from collector.database.query import CaseResult, SuspectSessions
from collector.database.rows import with_columns
from collector.database.state import TEXT
from collector.database.versions import VersionProperties, shows
from collector.model import keys
from collector.model.plan import device_or_node_name
from collector.model.stack import Stack
from collector.store.base import Store

_INTERVAL = (  # in the order of a CaseInterval
    *("mean_us", "sessions", "stack_low_us", "stack_high_us", "stack_degrees", "stack_variance"),
)
_KEPT = (
    *("case", "outcome", "reason", "mean_us", "good", "measured", "warm", "trust"),
    *("head_commit", "plan", "plan_hash", "measurement", "warnings"),
)


@dataclass(frozen=True, slots=True)
class HeadContent:
    """The head of a database, which is empty if there is no commit."""

    store: Store
    commit: Commit | None
    manifest: SnapshotManifest | None

    @classmethod
    def of(cls, store: Store, commit: Commit | None) -> "HeadContent":
        """Return the content of a commit. Only the manifest is read."""
        return cls(store, commit, read_manifest(store, commit) if commit else None)

    @property
    def versions(self) -> Mapping[str, VersionProperties]:
        """Return the stack of each version directory, without the text of its op_mapping."""
        return self.manifest.stacks if self.manifest else {}

    def shows(self, stack: Stack) -> bool:
        """Return whether the version directory of a stack exists and shows exactly this stack."""
        return shows(self.versions, stack)

    def case_results(
        self, version_path: str, cases_of_interest: Iterable[str], *, cache: str | None = None
    ) -> dict[str, CaseResult]:
        """Return the result of each of these cases of a version directory that was measured.

        An imported duration is none: a campaign measures its case. Curves that are held back are
        not detected, because that requires all cases."""
        if version_path not in self.versions:
            return {}
        version, cases = self.versions[version_path], pa.array(cases_of_interest, TEXT)
        measured = self._measured(version_path)
        suspects = self._suspects(version, version_path, measured)
        best: list[pa.Table] = []
        for file in measured:
            found = list(best)
            for rows in self._batches(file, version_path, (*query.RESULT_COLUMNS, "reason")):
                own = rows.filter(pc.is_in(rows["case"], value_set=cases))
                own = query.with_suspect_sessions(query.measured_rows(own), suspects)
                best_rows = query.best_of(own, version, version_path, cache=cache)
                found.append(best_rows.select(_KEPT))
            best = [query.best_of_cases(pa.concat_tables(found))] if found else []
        return query.results_of_rows(best[0]) if best else {}

    def suspect_once(
        self, version_path: str, cases_of_interest: Iterable[str], *, cache: str | None = None
    ) -> dict[str, str]:
        """Return the device or node of each of these cases that a single suspect session measured.

        Cases that two suspect sessions measured are omitted."""
        results = self.case_results(version_path, cases_of_interest, cache=cache)
        suspect = pa.array([case for case, found in results.items() if found.is_suspect], TEXT)
        if not len(suspect):
            return {}
        version, measured = self.versions[version_path], self._measured(version_path)
        suspects = self._suspects(version, version_path, measured)
        places: dict[str, list[str]] = {}
        columns = (*query.RESULT_COLUMNS, "reason", "node", "device_serial")
        for file in measured:
            for rows in self._batches(file, version_path, columns):
                own = rows.filter(pc.is_in(rows["case"], value_set=suspect))
                own = query.with_suspect_sessions(own, suspects)
                for row in query.of_stack(own, version, version_path, cache=cache).to_pylist():
                    reported = (row["outcome"], row["reason"], row["warnings"])
                    if query.is_of_suspect_session(*reported):
                        device_or_node = device_or_node_name(row["node"], row["device_serial"])
                        places.setdefault(row["case"], []).append(device_or_node)
        return {case: found[0] for case, found in places.items() if len(found) == 1}

    def intervals(self, version_path: str, expected: Iterable[str]) -> dict[str, CaseInterval]:
        """Return the intervals that a version directory shows of these cases, by case id.

        A case without an interval has no displayed duration, or an imported one. Raises
        DamagedObject for a table that is not one of intervals."""
        if (shown := self._shown(version_path)) is None:
            return {}
        cases = pa.array(expected, TEXT)
        found: dict[str, CaseInterval] = {}
        data = read_file(self.store, shown)
        for rows in snapshot.interval_rows(data, version_path, key=shown.key):
            is_own = pc.is_in(rows["case"], value_set=cases)
            own = rows.filter(pc.and_(is_own, pc.greater(rows["sessions"], 0)))
            intervals = map(CaseInterval, *(own[name].to_pylist() for name in _INTERVAL))
            found.update(zip(own["case"].to_pylist(), intervals, strict=True))
        return found

    def _suspects(
        self, version: VersionProperties, version_path: str, files: Iterable[StoredFile]
    ) -> SuspectSessions:
        canary_tables = [
            query.canary_rows(rows, version, version_path)
            for file in files
            for rows in self._batches(file, version_path, query.CANARY_COLUMNS)
        ]
        if not canary_tables:
            return {}
        factors = query.factors_of(pa.concat_tables(canary_tables), version)
        return query.suspect_sessions(factors)

    def _own(self, version_path: str) -> list[StoredFile]:
        if self.manifest is None or self.commit is None or version_path not in self.versions:
            return []
        entry = self.manifest.versions[version_path]
        files = read_version_files(self.store, self.commit, version_path, entry)
        return list(own_files(version_path, entry, files))

    def _measured(self, version_path: str) -> list[StoredFile]:
        """Return the files of measurements of a version directory."""
        return [f for f in self._own(version_path) if f.key.startswith(keys.MEASUREMENTS)]

    def _shown(self, version_path: str) -> StoredFile | None:
        """Return the file of the cases that a version directory shows."""
        return next((f for f in self._own(version_path) if f.key.startswith(keys.SHOWN)), None)

    def _batches(
        self, file: StoredFile, version_path: str, columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Return the rows of a file of measurements in batches, with these columns only.

        Raises DamagedObject, naming the key, if the content does not match the name."""
        data = read_file(self.store, file)
        try:
            for rows in parquet_batches(data, key=file.key, columns=columns):
                path = pa.repeat(pa.scalar(version_path, TEXT), rows.num_rows)
                whole = text_of_measurements(rows).append_column("version_path", path)
                yield with_columns(whole, columns).select(columns)
        except (pa.ArrowException, KeyError, OSError, ValueError) as error:
            what = f"unexpected columns in a table: {error}"
            raise DamagedObject(what, path=file.key) from error


class HeldShards:
    """The shards of one campaign whose measurements the database has.

    The manifest of a version directory never changes, so each is read once."""

    def __init__(self, store: Store, campaign: str):
        self.store = store
        self._campaign = campaign
        self._of_version: dict[str, frozenset[str]] = {}  # by the hash of its manifest
        self._snapshot = ""
        self._plans = frozenset[MergedPlan]()
        self._held = frozenset[str]()

    def at(self, head: Commit | None) -> frozenset[str]:
        """Return the shards that this head holds.

        Shards of other campaigns do not count: two campaigns that plan the same cases have shards
        with the same id."""
        self._read_head(head)
        return self._held if head else frozenset()

    def plans_at(self, head: Commit | None) -> frozenset[MergedPlan]:
        """Return the plans of the campaign that this head holds."""
        self._read_head(head)
        return self._plans if head else frozenset()

    def _read_head(self, head: Commit | None) -> None:
        if head is None or self._snapshot == head.snapshot:
            return
        manifest = read_manifest(self.store, head)
        plans = frozenset(plan for plan in manifest.plans if plan.campaign == self._campaign)
        held = set[str]()
        for path, entry in manifest.versions.items():
            if self._campaign in entry.campaigns:
                if entry.sha256 not in self._of_version:
                    files = read_version_files(self.store, head, path, entry)
                    shards = frozenset(files.shards.get(self._campaign, ()))
                    self._of_version[entry.sha256] = shards
                held |= self._of_version[entry.sha256]
        self._held, self._snapshot, self._plans = frozenset(held), head.snapshot, plans
