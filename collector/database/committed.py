"""What lies in the store of one shard, every object checked against the hash that names it.

Nothing is read of the bytes but what leads to the next of them. What was changed, is missing or is
another's is kept as the shard's damage: who asks for a shard always gets one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, DamagedObject, NotFound, stored
from collector.database.plans import plan_reader
from collector.environment import side_by_side
from collector.model import keys
from collector.model.case import normal_kernel_type
from collector.model.manifest import (
    AttemptManifest,
    PartEntry,
    ShardCommit,
    StoredObject,
    commit_from_json,
    manifest_from_json,
)
from collector.model.plan import Plan, PlannedShard
from collector.model.record import CaseRecord, as_ran
from collector.model.row import value_of
from collector.store.base import AT_ONCE, Store

# What binds a committed object and its rows to the shard that they are of.
#
# A hash says that an object is the one that was named, and an id that a row was not changed:
# neither says whose they are. So whatever is stored of a shard must name it, its campaign, and the
# attempt and the session that its own key has; a row besides the stack and the runtime of the plan,
# and a case of the shard under that case's kernel type, or the case of a kernel that ran in its
# place.
#
# Plans of one campaign may share a shard, whose id follows from its cases and settings. Rows that
# were measured under the other plan say that plan's number, hash and head, by which they rank: so
# the campaign must have that very plan, of the same stack, and it must hold the shard.

# The rows of a part, cut down to some columns.
Columns = Callable[[Sequence[str]], Iterable[tuple[str, ...]]]
_RANK = ("plan", "plan_hash", "head_commit")
_CASE = ("case", "kernel_type", "asked", "op_state", "core", "recorded")


@dataclass(frozen=True, slots=True)
class BoundShard:
    """A shard of a plan. `plan_of` reads a plan of the campaign by its number; where there is none
    it raises NotFound, and BadInput for one that cannot be read."""

    plan: Plan
    shard: str
    plan_of: Callable[[int], Plan]

    def check_commit(self, commit: ShardCommit, key: str) -> None:
        """Raises BadInput, naming the key, for the commit of another shard, and for one that
        points elsewhere than at a manifest of this one."""
        self._check(commit.shard, self.shard, "shard", key)
        try:
            wanted = keys.attempt_manifest(self.plan.campaign, self.shard, commit.attempt)
        except BadInput as error:
            raise BadInput(str(error), path=key) from error
        self._check(commit.manifest.key, wanted, "manifest", key)

    def check_manifest(self, manifest: AttemptManifest, commit: ShardCommit) -> None:
        """Raises BadInput, naming the manifest's key, for what another campaign, shard, attempt or
        plan has left, and where it names anything but parts of this shard, each once; naming the
        plan's key where that is not the plan any more which the manifest is of."""
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
            raise BadInput("duplicate part in the manifest", path=key)
        for entry in manifest.parts:
            self.check_entry(entry, key)

    def check_entry(self, entry: PartEntry, key: str) -> None:
        """Raises BadInput, naming the key, where it names anything but a part of this shard and
        records of the same session."""
        place = self._place(entry.part, ("part",), key)
        for raw in entry.raw:
            if self._place(raw, ("raw/op_summary", "raw/journal"), key) != place:
                raise BadInput(
                    f"{raw.key} is not a record of the session of {entry.part.key}", path=key
                )

    def check_final(
        self, final: Mapping[str, str], records: Mapping[str, CaseRecord], key: str
    ) -> None:
        """Raises BadInput, naming the key, where a final case is not in the shard."""
        if foreign := final.keys() - records.keys():
            raise BadInput(f"final case {min(foreign)} is not in the shard", path=key)

    def check_part(self, columns: Columns, records: Mapping[str, CaseRecord], key: str) -> None:
        """Raises BadInput, naming the key, for rows that are not of this shard, or not of the
        attempt and the session that the part's key names. `records` are the shard's, by case."""
        found = keys.session_object(key, self.plan.campaign, self.shard)
        if found is None or found.kind != "part":
            raise BadInput(f"not a part of shard {self.shard}", path=key)
        where = (self.plan.campaign, self.shard, found.attempt, found.session)
        for name, expected in (
            ("campaign", self.plan.campaign),
            ("shard", self.shard),
            ("attempt", found.attempt),
            ("session", str(found.session)),
            ("stack_id", self.plan.stack.stack_id),
            ("runtime", self.plan.stack.runtime.value),
        ):
            for (said,) in set(columns((name,))):
                self._check(said, expected, name, key)
        for (said,) in set(columns(("raw_key",))) - {("",)}:
            self._check(said, keys.raw_summary(*where), "raw_key", key)
        for number, plan_hash, head in set(columns(_RANK)):
            plan = self._plan(_whole(number, "plan", key), key)
            self._check(plan_hash, plan.plan_hash, f"plan {number}", key)
            self._check(head, str(plan.head_commit), "head_commit", key)
        _check_cases(columns(_CASE), records, key)

    def _plan(self, number: int, key: str) -> Plan:
        """The plan of a number that is said, where the campaign has it and it holds this shard."""
        return self.plan if number == self.plan.number else self._other(number, key)

    def _other(self, number: int, key: str) -> Plan:
        try:
            plan = self.plan_of(number)
        except (BadInput, NotFound) as error:
            raise BadInput(f"cannot read plan {number}: {error}", path=key) from error
        if self.shard not in {shard.shard_id for shard in plan.shards}:
            raise BadInput(f"plan {number} has no shard {self.shard}", path=key)
        self._check(plan.stack.stack_id, self.plan.stack.stack_id, f"stack of plan {number}", key)
        return plan

    def _place(self, stored: StoredObject, kinds: Sequence[str], key: str) -> tuple[str, int]:
        """The attempt and the session of an object that a manifest names."""
        found = keys.session_object(stored.key, self.plan.campaign, self.shard)
        if found is None or found.kind not in kinds:
            raise BadInput(f"object {stored.key} does not belong to shard {self.shard}", path=key)
        return found.attempt, found.session

    def _check(self, got: str, expected: str, name: str, key: str) -> None:
        if got != expected:
            raise BadInput(f"{name}: expected {expected}, got {got or 'none'}", path=key)


def _check_cases(
    rows: Iterable[tuple[str, ...]], records: Mapping[str, CaseRecord], key: str
) -> None:
    for case, kernel_type, asked, op_state, core, recorded in set(rows):
        record = records.get(asked or case)
        if record is None:
            raise BadInput(f"case {asked or case} of a row is not in the shard", path=key)
        if asked:
            _check_ran(record, (case, kernel_type, op_state, core, recorded), key)
        elif not _is_name_of(kernel_type, record.kernel_type):
            raise BadInput(
                f"case {case}: expected kernel type {record.kernel_type}, got {kernel_type!r}",
                path=key,
            )


def _is_name_of(said: str, kernel_type: str) -> bool:
    """Whether a kernel type is said as its source wrote it, or as identity has it."""
    return said == kernel_type or said == normal_kernel_type(kernel_type)


def _check_ran(record: CaseRecord, told: tuple[str, ...], key: str) -> None:
    """That a kernel which ran in place of a case's own is filed under what it makes of the case."""
    case, kernel_type, op_state, core, recorded = told
    try:
        ran = as_ran(record, kernel_type, op_state, core, value_of("recorded", recorded)).case_id
    except BadInput as error:
        raise BadInput(str(error), path=key) from error
    if ran != case:
        raise BadInput(
            f"case {case} does not match kernel {kernel_type}, which ran for case {record.case_id}",
            path=key,
        )


def _whole(text: str, name: str, key: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise BadInput(f"{name}: expected an integer, got {text!r}", path=key)
    return int(text)


# Reading what was promised by hash: the one way an object enters the database or leaves it.
#
# Where bytes and promise disagree, one of the two was changed after it was written. A changed
# object has a hash that shares with the one it had what chance gives: 4 of 64 digits. So a promise
# that agrees in most digits was changed itself, by a hand or by rot.

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_DIGITS = 32


def read_sealed(store: Store, key: str, sha256: str, *, named_by: str | None) -> bytes:
    """The object's bytes; `named_by` is the key of who promised them, None for its own name.
    DamagedObject, naming the key of the one of the two that was changed, where they are others."""
    if named_by is not None and not _SHA256.fullmatch(sha256):
        raise DamagedObject(
            f"expected a sha256 of {key}, got {sha256!r}: this object was changed after it was "
            "written",
            path=named_by,
        )
    try:
        data = store.get(key)
    except NotFound as error:
        raise DamagedObject(f"missing, although {_whose(named_by)} names it", path=key) from error
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
        f"expected sha256 {sha256}, recorded by {_whose(named_by)}, got {got}: the object was "
        "changed after it was written",
        path=key,
    )


def is_slip(promised: str, got: str) -> bool:
    """Return whether a recorded hash differs from the actual one in a few digits only."""
    return sum(a == b for a, b in zip(promised, got, strict=False)) > _MOST_DIGITS


def _whose(named_by: str | None) -> str:
    return named_by or "its own name"


@dataclass(frozen=True, slots=True)
class CommittedAttempt:
    """What a shard's commit names: the manifest of an attempt, and its parts by key. Both are
    `bound` to the shard; the rows in the parts are not, yet."""

    bound: BoundShard
    manifest: AttemptManifest
    key: str
    parts: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class StoredShard:
    """The table of a shard's cases, and its answer: None while nobody has committed it. `damage`
    is what was found in the place of either."""

    shard_id: str
    table: bytes | None = None
    answer: CommittedAttempt | None = None
    damage: BadInput | None = None


def fetch(
    store: Store,
    plan: Plan,
    shard: PlannedShard,
    *,
    with_answer: bool,
    plan_of: Callable[[int], Plan] | None = None,
) -> StoredShard:
    """One shard of a plan; its table alone where the answer is not wanted. `plan_of` reads the
    other plans of the campaign, for who fetches many."""
    found = StoredShard(shard.shard_id)
    bound = BoundShard(plan, shard.shard_id, plan_of or plan_reader(store, plan.campaign))
    key = keys.shard(plan.campaign, shard.shard_id)
    try:
        named_by = keys.plan(plan.campaign, plan.number)
        found = replace(found, table=read_sealed(store, key, shard.sha256, named_by=named_by))
        return replace(found, answer=_answer(store, bound) if with_answer else None)
    except BadInput as error:
        return replace(found, damage=error)


def read_commit(store: Store, campaign: str, shard: str) -> ShardCommit | None:
    """The commit of a shard, whoever made it; None where there is none yet."""
    key = keys.committed(campaign, shard)
    try:
        with stored():
            return commit_from_json(store.get(key), key=key)
    except NotFound:
        return None


def _answer(store: Store, bound: BoundShard) -> CommittedAttempt | None:
    commit = read_commit(store, bound.plan.campaign, bound.shard)
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


# Whether what the profiler recorded is still there, unchanged: the records that certificates name.
#
# Nothing is published from them, so that no merge reads them. They are what a number can be traced
# back to, and most of the bytes of a campaign: whoever has no time for them leaves them out.


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A file of a session of a shard, and the key of the manifest that names it."""

    shard: str
    stored: StoredObject
    named_by: str


def records_named(manifest: AttemptManifest, key: str) -> list[RawRecord]:
    """The records of all sessions that count, as the manifest at `key` names them."""
    return [RawRecord(manifest.shard, raw, key) for entry in manifest.parts for raw in entry.raw]


def record_problems(store: Store, records: Iterable[RawRecord]) -> Iterator[str]:
    """A line for each that is missing or is not what was promised."""

    def problem(record: RawRecord) -> str:
        stored = record.stored
        try:
            read_sealed(store, stored.key, stored.sha256, named_by=record.named_by)
        except BadInput as error:
            return str(error)
        return ""

    return filter(None, side_by_side(problem, records, AT_ONCE))
