"""What a version directory may reuse of an older one: a record for each decision.

A record is not a measurement: it is in no tree, no snapshot and no prior of another version. A
reader applies it only if requested (channel `reused`). It has the cases, and for each kernel the
ratio that a sample of its cases has shown. The durations are those of the older directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from collector.codec.canonical import decode_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, stored
from collector.database.shard_commits import read_sealed
from collector.database.versions import VersionProperties
from collector.model import keys
from collector.quality.upgrades import RatioEstimate
from collector.store.base import Store, create_named

_WHAT = "a record of reused cases"
_GREATEST_RATIO = 10.0


@dataclass(frozen=True, slots=True)
class ReusedKernel:
    """The cases of a kernel that are reused, and the ratio of its sampled cases. Kernels are
    distinguished by dtypes and formats of the inputs, and by OP State."""

    kernel_type: str
    dtypes: str
    formats: str
    op_state: str
    ratio: RatioEstimate
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reuse:
    """What the version directory `version_path` reuses of the directory `of`, as a plan decided at
    the commit `head_commit`."""

    campaign: str
    plan: int
    head_commit: int
    version_path: str
    stack_id: str
    of: str
    of_stack_id: str
    margin: float
    kernels: tuple[ReusedKernel, ...]

    @property
    def cases(self) -> int:
        """Return the number of reused cases."""
        return sum(len(kernel.cases) for kernel in self.kernels)

    @property
    def case_ids(self) -> frozenset[str]:
        return frozenset(case for kernel in self.kernels for case in kernel.cases)


def store_reuse(store: Store, reuse: Reuse) -> None:
    """Create the record; writing it again is silent."""
    data = readable_json(asdict(reuse))
    create_named(store, keys.reused(reuse.version_path, sha256_hex(data)), data)


def read_reuses(store: Store, version_path: str) -> Sequence[Reuse]:
    """Return the records of a version directory, the latest decision last.

    Raises DamagedObject, which names the key, for a record that was changed."""

    def rank(pair: tuple[Reuse, str]) -> tuple[int, int, str, str]:
        found, key = pair
        return found.head_commit, found.plan, found.campaign, key

    names = reuse_keys(store, keys.all_reused(version_path))
    records = [(read_reuse(store, key), key) for key in names]
    own = [pair for pair in records if pair[0].version_path == version_path]
    return [found for found, _ in sorted(own, key=rank)]


def applicable_reuses(
    store: Store, version_path: str, number: int, versions: Mapping[str, VersionProperties]
) -> Sequence[Reuse]:
    """Return the records of a version directory that were decided up to this commit, for the stacks
    that it and the older directory show there; `versions` are the directories of the commit. The
    latest decision is last."""
    stacks = {path: version.shown_stack.stack_id for path, version in versions.items()}
    return [
        one
        for one in read_reuses(store, version_path)
        if one.head_commit <= number
        and (one.stack_id, one.of_stack_id) == (stacks[version_path], stacks.get(one.of))
    ]


def reuse_keys(store: Store, prefix: str = keys.REUSED) -> list[str]:
    """Return the keys of all records, or of those below a prefix, in order."""
    return sorted(info.key for info in store.list(prefix) if keys.is_ours(info.key))


def read_reuse(store: Store, key: str) -> Reuse:
    """Return a record. Raises DamagedObject or BadInput, which name the key, for other data."""
    sha256 = key.rpartition("/")[2].removesuffix(".json")
    data = read_sealed(store, key, sha256, named_by=None)
    with stored():
        return reuse_from_json(data, key=key)


def reuse_from_json(data: bytes, *, key: str) -> Reuse:
    """Return a record. Raises BadInput, which names the key, for other data."""
    found = decode_object(Reuse, data, what=_WHAT, key=key)
    for path in (found.version_path, found.of):
        try:
            keys.partition(path)
        except BadInput as error:
            raise BadInput(f"expected {_WHAT}: {error}", path=key) from error
    if not 0 < found.margin < 1:
        what = f"margin: expected a share between 0 and 1, got {found.margin:g}"
        raise BadInput(f"expected {_WHAT}: {what}", path=key)
    for kernel in found.kernels:
        one = kernel.ratio
        widths = one.error, one.scatter
        is_ratio = 1 / _GREATEST_RATIO <= one.ratio <= _GREATEST_RATIO
        if not is_ratio or not all(0 <= width < 1 for width in widths) or one.degrees < 1:
            what = f"ratio of {kernel.kernel_type[:40]!r}: expected a possible one, got {one}"
            raise BadInput(f"expected {_WHAT}: {what}", path=key)
    return found
