"""The last objects that a worker writes: the manifest of an attempt, and the commit of a shard.

The manifest is the last write of an attempt. It names parts by key and hash, also parts of earlier
attempts, and the final measurement of every case. The first commit of a shard is the valid one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import reduce

from collector.codec.canonical import decode_object, readable_json, sha256_hex
from collector.model.stack import Stack


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Device time and wall time, in microseconds and seconds, from which efficiency is computed.

    `wall_s` includes `startup_s`, until the first case, and `export_s`, in which the profiler wrote
    the records of `launches` and they were read."""

    busy_us: float
    useful_us: float
    wall_s: float
    startup_s: float
    export_s: float = 0.0
    sessions: int = 0
    cases: int = 0
    launches: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


NO_USAGE = Usage(0.0, 0.0, 0.0, 0.0)


def total_usage(usages: Iterable[Usage]) -> Usage:
    return reduce(Usage.plus, usages, NO_USAGE)


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One session's part, the raw records it was derived from (none for results that need no
    device), and its usage, including that of earlier sessions without a part. It is also stored
    before the part, so that a reader that finds the part knows its bytes."""

    part: StoredObject
    raw: tuple[StoredObject, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class AttemptManifest:
    campaign: str
    plan: int
    plan_hash: str
    shard: str
    attempt: str
    node: str
    collector_version: str
    parts: tuple[PartEntry, ...]
    final: Mapping[str, str]  # case id -> measurement id

    @property
    def usage(self) -> Usage:
        """Return the usage of all attempts together for the parts that count."""
        return total_usage(entry.usage for entry in self.parts)


@dataclass(frozen=True, slots=True)
class ShardCommit:
    """The record that makes an attempt's manifest the result of the shard."""

    shard: str
    attempt: str
    manifest: StoredObject
    nonce: str


def manifest_to_json(manifest: AttemptManifest) -> bytes:
    value = asdict(manifest)
    value["final"] = dict(manifest.final)
    return readable_json(value)


def manifest_from_json(data: bytes, *, key: str = "manifest") -> AttemptManifest:
    """Return the manifest. Raises BadInput, which names the key, for other data."""
    return decode_object(AttemptManifest, data, what="an attempt's manifest", key=key)


def entry_to_json(entry: PartEntry) -> bytes:
    return readable_json(asdict(entry))


def entry_from_json(data: bytes, *, key: str = "entry") -> PartEntry:
    """Return the entry of a part. Raises BadInput, which names the key, for other data."""
    return decode_object(PartEntry, data, what="the entry of a part", key=key)


def shard_commit_to_json(commit: ShardCommit) -> bytes:
    return readable_json(asdict(commit))


def shard_commit_from_json(data: bytes, *, key: str = "commit") -> ShardCommit:
    """Return the commit of a shard. Raises BadInput, which names the key, for other data."""
    return decode_object(ShardCommit, data, what="the commit of a shard", key=key)


# The result of a self-test on one stack, as it is stored: written once, never changed.


@dataclass(frozen=True, slots=True)
class Verified:
    """The kernel types whose launches were, by every tensor, those requested."""

    stack: Stack
    kernels: tuple[str, ...]
    at: str  # time in UTC


def verified_to_json(verified: Verified) -> bytes:
    value = {"stack": verified.stack.as_json(), "kernels": verified.kernels, "at": verified.at}
    return readable_json(value)


def verified_from_json(data: bytes, *, key: str = "verified") -> Verified:
    """Return the result of a self-test. Raises BadInput, which names the key, for other data."""
    return decode_object(Verified, data, what="the result of a self-test", key=key)


def verified_hash(verified: Verified) -> str:
    """Return the hash of its bytes, by which it is stored."""
    return sha256_hex(verified_to_json(verified))
