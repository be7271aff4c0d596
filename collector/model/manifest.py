"""What a worker leaves behind: the manifest of an attempt, and the commit of a shard.

The manifest is an attempt's last write. It names parts by key and hash, also parts of earlier
attempts, and the final measurement of every case. The first commit of a shard wins.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
    """Device time over wall time, in microseconds and seconds: what efficiency is made of."""

    busy_us: float
    useful_us: float
    wall_s: float
    startup_s: float

    def plus(self, other: "Usage") -> "Usage":
        return Usage(
            self.busy_us + other.busy_us,
            self.useful_us + other.useful_us,
            self.wall_s + other.wall_s,
            self.startup_s + other.startup_s,
        )


NO_USAGE = Usage(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One session's part, the raw records it was made from (none for answers that need no device),
    and what it took, together with sessions before it that gave no part. It is stored before the
    part, too, so that whoever finds the part knows what its bytes were."""

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
        """What every attempt took together for the parts that count."""
        return reduce(Usage.plus, (entry.usage for entry in self.parts), NO_USAGE)


@dataclass(frozen=True, slots=True)
class ShardCommit:
    """The record that makes an attempt's manifest the shard's answer."""

    shard: str
    attempt: str
    manifest: StoredObject
    nonce: str


def manifest_to_json(manifest: AttemptManifest) -> bytes:
    value = asdict(manifest)
    value["final"] = dict(manifest.final)
    return readable_json(value)


def manifest_from_json(data: bytes, *, key: str = "manifest") -> AttemptManifest:
    """Raises BadInput, naming the key, for anything but a manifest."""
    return decode_object(AttemptManifest, data, what="an attempt's manifest", key=key)


def entry_to_json(entry: PartEntry) -> bytes:
    return readable_json(asdict(entry))


def entry_from_json(data: bytes, *, key: str = "entry") -> PartEntry:
    """Raises BadInput, naming the key, for anything but the entry of a part."""
    return decode_object(PartEntry, data, what="the entry of a part", key=key)


def commit_to_json(commit: ShardCommit) -> bytes:
    return readable_json(asdict(commit))


def commit_from_json(data: bytes, *, key: str = "commit") -> ShardCommit:
    """Raises BadInput, naming the key, for anything but the commit of a shard."""
    return decode_object(ShardCommit, data, what="the commit of a shard", key=key)


# What a self-test proved on one stack, as it is kept in a store: written once, never changed.


@dataclass(frozen=True, slots=True)
class Verified:
    """The kernel types whose launches were seen, by every tensor, to be those asked for."""

    stack: Stack
    kernels: tuple[str, ...]
    at: str  # when, in UTC


def verified_to_json(verified: Verified) -> bytes:
    value = {"stack": verified.stack.as_json(), "kernels": verified.kernels, "at": verified.at}
    return readable_json(value)


def verified_from_json(data: bytes, *, key: str = "verified") -> Verified:
    """Raises BadInput, naming the key, for anything else."""
    return decode_object(Verified, data, what="the result of a self-test", key=key)


def verified_hash(verified: Verified) -> str:
    """Its place in a store: the hash of its bytes."""
    return sha256_hex(verified_to_json(verified))
