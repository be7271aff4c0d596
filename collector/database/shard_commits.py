"""The stored objects of one shard, each checked against the hash that names it.

Only those bytes are parsed that lead to the next object. An object that was changed, is missing or
belongs to another shard is recorded as the shard's damage: the caller always gets a shard.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, DamagedObject, NotFound, stored
from collector.database.plans import plan_reader
from collector.model import keys
from collector.model.case import normal_kernel_type
from collector.model.manifest import (
    NO_USAGE,
    AttemptManifest,
    PartEntry,
    ShardCommit,
    StoredObject,
    Usage,
    manifest_from_json,
    shard_commit_from_json,
)
from collector.model.plan import Plan, PlannedShard
from collector.model.record import CaseRecord, as_ran
from collector.model.row import value_of
from collector.store.base import Store

# The checks that bind a committed object and its rows to their shard.
#
# A hash proves that an object is the named one, and an id that a row was not changed; neither
# proves which shard they belong to. So every stored object of a shard must name the shard, its
# campaign, and the attempt and the session of its own key. A row must also name the stack and the
# runtime of the plan. Its case must be a case of the shard with that case's kernel type, or the
# case of a kernel that ran instead.
#
# Plans of one campaign may share a shard, because the shard's id follows from its cases and
# settings. Rows that were measured under the other plan have that plan's number, hash and head,
# which determine their rank. So the campaign must have exactly that plan, with the same stack, and
# the plan must have the shard.

# The rows of a part, reduced to some columns.
Columns = Callable[[Sequence[str]], Iterable[tuple[str, ...]]]
_RANK = ("plan", "plan_hash", "head_commit")
_CASE = ("case", "kernel_type", "asked", "op_state", "core", "recorded")


@dataclass(frozen=True, slots=True)
class BoundShard:
    """A shard of a plan. `plan_of` reads a plan of the campaign by its number; it raises NotFound
    if there is none, and BadInput if the plan is invalid."""

    plan: Plan
    shard: str
    plan_of: Callable[[int], Plan]

    def check_commit(self, commit: ShardCommit, key: str) -> None:
        """Raise BadInput, which names the key, for the commit of another shard, and for a commit
        that does not name a manifest of this shard."""
        self._check(commit.shard, self.shard, "shard", key)
        try:
            expected = keys.attempt_manifest(self.plan.campaign, self.shard, commit.attempt)
        except BadInput as error:
            raise BadInput(str(error), path=key) from error
        self._check(commit.manifest.key, expected, "manifest", key)

    def check_manifest(self, manifest: AttemptManifest, commit: ShardCommit) -> None:
        """Raise BadInput, which names the manifest's key, for a manifest of another campaign,
        shard, attempt or plan, and for one that does not name parts of this shard, each once. If
        the plan was changed after the manifest was written, the error names the plan's key."""
        key = commit.manifest.key
        self._check(manifest.campaign, self.plan.campaign, "campaign", key)
        self._check(manifest.shard, self.shard, "shard", key)
        self._check(manifest.attempt, commit.attempt, "attempt", key)
        plan = self._plan(manifest.plan, key)
        if plan.plan_hash != manifest.plan_hash:
            # The commit has the hash of the manifest, whose worker had read the plan by its hash.
            raise BadInput(
                f"expected plan hash {manifest.plan_hash}, recorded in {key}, got "
                f"{plan.plan_hash}: the plan was changed after it was measured",
                path=keys.plan(plan.campaign, plan.number),
            )
        named = [entry.part.key for entry in manifest.parts]
        if len(set(named)) < len(named):
            raise BadInput("expected each part once in the manifest, got a duplicate", path=key)
        for entry in manifest.parts:
            self.check_entry(entry, key)

    def check_entry(self, entry: PartEntry, key: str) -> None:
        """Raise BadInput, which names the key, unless the entry names a part of this shard and
        records of the same session."""
        place = self._attempt_and_session(entry.part, ("part",), key)
        for raw in entry.raw:
            if self._attempt_and_session(raw, ("raw/op_summary", "raw/journal"), key) != place:
                raise BadInput(
                    f"expected a record of the session of {entry.part.key}, got {raw.key}", path=key
                )

    def check_part(self, columns: Columns, records: Mapping[str, CaseRecord], key: str) -> None:
        """Raise BadInput, which names the key, for rows that are not of this shard, or not of the
        attempt and the session that the part's key names. `records` are the shard's, by case."""
        found = keys.session_object(key, self.plan.campaign, self.shard)
        if found is None or found.kind != "part":
            raise BadInput(f"expected a part of shard {self.shard}, got another object", path=key)
        where = (self.plan.campaign, self.shard, found.attempt, found.session)
        for name, expected in (
            ("campaign", self.plan.campaign),
            ("shard", self.shard),
            ("attempt", found.attempt),
            ("session", str(found.session)),
            ("stack_id", self.plan.stack.stack_id),
            ("runtime", self.plan.stack.runtime.value),
        ):
            for (reported,) in set(columns((name,))):
                self._check(reported, expected, name, key)
        for (reported,) in set(columns(("raw_key",))) - {("",)}:
            self._check(reported, keys.raw_summary(*where), "raw_key", key)
        for number, plan_hash, head in set(columns(_RANK)):
            plan = self._plan(_whole(number, "plan", key), key)
            self._check(plan_hash, plan.plan_hash, f"plan {number}", key)
            self._check(head, str(plan.head_commit), "head_commit", key)
        _check_cases(columns(_CASE), records, key)

    def _plan(self, number: int, key: str) -> Plan:
        if number == self.plan.number:
            return self.plan
        try:
            plan = self.plan_of(number)
        except (BadInput, NotFound) as error:
            raise BadInput(f"cannot read plan {number}: {error}", path=key) from error
        if self.shard not in {shard.shard_id for shard in plan.shards}:
            raise BadInput(f"plan {number}: expected shard {self.shard}, found none", path=key)
        self._check(plan.stack.stack_id, self.plan.stack.stack_id, f"stack of plan {number}", key)
        return plan

    def _attempt_and_session(
        self, stored: StoredObject, kinds: Sequence[str], key: str
    ) -> tuple[str, int]:
        found = keys.session_object(stored.key, self.plan.campaign, self.shard)
        if found is None or found.kind not in kinds:
            raise BadInput(f"expected an object of shard {self.shard}, got {stored.key}", path=key)
        return found.attempt, found.session

    def _check(self, got: str, expected: str, name: str, key: str) -> None:
        if got != expected:
            raise BadInput(f"{name}: expected {expected}, got {got or 'none'}", path=key)


def _check_cases(
    rows: Iterable[tuple[str, ...]], records: Mapping[str, CaseRecord], key: str
) -> None:
    for case, kernel_type, requested, op_state, core, recorded in set(rows):
        record = records.get(requested or case)
        if record is None:
            raise BadInput(
                f"expected rows of the shard's cases, got case {requested or case}", path=key
            )
        if requested:
            _check_ran(record, (case, kernel_type, op_state, core, recorded), key)
        elif kernel_type not in (record.kernel_type, normal_kernel_type(record.kernel_type)):
            raise BadInput(
                f"case {case}: expected kernel type {record.kernel_type}, got {kernel_type!r}",
                path=key,
            )


def _check_ran(record: CaseRecord, columns: tuple[str, ...], key: str) -> None:
    """Check that the row of a kernel that ran instead of a case's own has the case that follows
    from that kernel."""
    case, kernel_type, op_state, core, recorded = columns
    try:
        ran = as_ran(record, kernel_type, op_state, core, value_of("recorded", recorded)).case_id
    except BadInput as error:
        raise BadInput(str(error), path=key) from error
    if ran != case:
        raise BadInput(
            f"expected the case of {kernel_type}, which ran for case {record.case_id}, got {case}",
            path=key,
        )


def _whole(text: str, name: str, key: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise BadInput(f"{name}: expected an integer, got {text!r}", path=key)
    return int(text)


# Reads of objects by a recorded hash: the only way an object enters or leaves the database.
#
# If the bytes and the recorded hash disagree, one of the two was changed after it was written. A
# changed object has a hash that agrees with the earlier one by chance: in 4 of 64 digits. So if the
# recorded hash agrees in most digits, the hash itself was changed, by a user or by bit rot.

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_DIGITS = 32


def read_sealed(store: Store, key: str, sha256: str, *, named_by: str | None) -> bytes:
    """Return the object's bytes. `named_by` is the key of the object that records the hash; None if
    the object's own key does. If the bytes do not match, raises DamagedObject, which names the key
    of the one of the two that was changed."""
    if named_by is not None and not _SHA256.fullmatch(sha256):
        raise DamagedObject(
            f"expected a sha256 of {key}, got {sha256!r}: this object was changed after it was "
            "written",
            path=named_by,
        )
    whose = named_by or "its own name"
    try:
        data = store.get(key)
    except NotFound as error:
        raise DamagedObject(f"missing, although {whose} names it", path=key) from error
    got = sha256_hex(data)
    if got == sha256:
        return data
    if named_by is not None and is_slip(sha256, got):
        raise DamagedObject(
            f"expected sha256 {got} of {key}, got {sha256}: the two differ in so few digits that "
            "the recorded sha256 was changed after it was written",
            path=named_by,
        )
    raise DamagedObject(
        f"expected sha256 {sha256}, recorded by {whose}, got {got}: the object was "
        "changed after it was written",
        path=key,
    )


def is_slip(promised: str, got: str) -> bool:
    """Return whether a recorded hash differs from the actual one in a few digits only."""
    return sum(a == b for a, b in zip(promised, got, strict=False)) > _MOST_DIGITS


@dataclass(frozen=True, slots=True)
class CommittedAttempt:
    """The objects that a shard's commit names: the manifest of an attempt, and its parts by key.
    Both are checked against the shard (`bound`); the rows in the parts are not checked yet."""

    bound: BoundShard
    manifest: AttemptManifest
    key: str
    parts: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class StoredShard:
    """The table of a shard's cases, and its committed attempt: None while there is no commit.
    `damage` is the error of either."""

    shard_id: str
    table: bytes | None = None
    attempt: CommittedAttempt | None = None
    damage: BadInput | None = None


def fetch(
    store: Store,
    plan: Plan,
    shard: PlannedShard,
    *,
    with_attempt: bool,
    plan_of: Callable[[int], Plan] | None = None,
) -> StoredShard:
    """Return one shard of a plan; only its table unless `with_attempt`. `plan_of` reads the other
    plans of the campaign, for a caller that fetches many shards."""
    found = StoredShard(shard.shard_id)
    bound = BoundShard(plan, shard.shard_id, plan_of or plan_reader(store, plan.campaign))
    key = keys.shard(plan.campaign, shard.shard_id)
    try:
        named_by = keys.plan(plan.campaign, plan.number)
        found = replace(found, table=read_sealed(store, key, shard.sha256, named_by=named_by))
        return replace(found, attempt=_attempt_of(store, bound) if with_attempt else None)
    except BadInput as error:
        return replace(found, damage=error)


def read_shard_commit(store: Store, campaign: str, shard: str) -> ShardCommit | None:
    """Return the commit of a shard, by any worker; None if there is none yet."""
    key = keys.committed(campaign, shard)
    try:
        with stored():
            return shard_commit_from_json(store.get(key), key=key)
    except NotFound:
        return None


def shard_usage(store: Store, campaign: str, shard: str) -> Usage:
    """Return the usage of a shard, or none if it cannot be read, which the merge reports."""
    manifest = committed_manifest(store, campaign, shard)
    return NO_USAGE if manifest is None else manifest.usage


def committed_manifest(store: Store, campaign: str, shard: str) -> AttemptManifest | None:
    """Return the manifest of a committed shard; None if it is not committed, or cannot be read,
    which the merge reports."""
    try:
        commit = read_shard_commit(store, campaign, shard)
        if commit is None:
            return None
        key = commit.manifest.key
        return manifest_from_json(store.get(key), key=key)
    except (BadInput, NotFound):
        return None


def _attempt_of(store: Store, bound: BoundShard) -> CommittedAttempt | None:
    commit = read_shard_commit(store, bound.plan.campaign, bound.shard)
    if commit is None:
        return None
    key, named = keys.committed(bound.plan.campaign, bound.shard), commit.manifest
    bound.check_commit(commit, key)
    data = read_sealed(store, named.key, named.sha256, named_by=key)
    manifest = manifest_from_json(data, key=named.key)
    bound.check_manifest(manifest, commit)
    parts = tuple(
        (part.key, read_sealed(store, part.key, part.sha256, named_by=named.key))
        for part in (entry.part for entry in manifest.parts)
    )
    return CommittedAttempt(bound, manifest, named.key, parts)
