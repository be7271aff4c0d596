"""Damage of the objects of a store: one kind of damage, drawn from a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from collector.store.in_memory import MemoryStore

KINDS = ("bit", "range", "cut", "missing", "swapped", "empty", "stray")
_STRAY_NAMES = (
    "{name}~",
    ".{name}.swp",
    "{folder}/.DS_Store",
    "{folder}/99999999.json",
    "{folder}/0.json",
    "{folder}/x.json",
    "{folder}/README.txt",
    "{folder}/part-x.csv",
)
_STRAY_BYTES = (b"", b"{}", b"[]", b'{"number": 1e999}', b"\x00\x01", b"[" * 5000)


@dataclass(frozen=True)
class Damage:
    """`keys` are the touched objects; the key of a stray object is one of them."""

    kind: str
    keys: tuple[str, ...]
    reported: str


class DamagedStore(MemoryStore):
    """A store that starts with given objects under any names."""

    def __init__(self, objects: Mapping[str, bytes]):
        super().__init__()
        self._objects = dict(objects)

    def objects(self) -> dict[str, bytes]:
        return dict(self._objects)


def damaged(objects: Mapping[str, bytes], seed: int) -> tuple[DamagedStore, Damage]:
    """Return a copy of a store with the damage of a seed: the same seed gives the same damage."""
    chance = random.Random(seed)
    changed = dict(objects)
    keys = sorted(key for key in changed if key.startswith(("db/", "campaigns/")))
    kind = chance.choice(KINDS)
    key = chance.choice(keys)
    if kind == "stray":
        key, changed[key] = _stray(key, chance)
        reported = f"{changed[key][:20]!r}"
    elif kind == "swapped":
        other = chance.choice([one for one in keys if one != key])
        changed[key], changed[other] = changed[other], changed[key]
        return DamagedStore(changed), Damage(kind, (key, other), "")
    elif kind == "missing":
        del changed[key]
        reported = ""
    else:
        changed[key], reported = _rotten(kind, changed[key], chance)
    return DamagedStore(changed), Damage(kind, (key,), reported)


def _stray(key: str, chance: random.Random) -> tuple[str, bytes]:
    folder, name = key.rsplit("/", 1)
    pattern = chance.choice(_STRAY_NAMES)
    stray = pattern.format(name=name, folder=folder)
    whole = stray if stray.startswith(folder) else f"{folder}/{stray}"
    return whole, chance.choice(_STRAY_BYTES)


def _rotten(kind: str, data: bytes, chance: random.Random) -> tuple[bytes, str]:
    if kind == "empty" or not data:
        return b"", ""
    at = chance.randrange(len(data))
    if kind == "cut":
        return data[:at], f"at {at}"
    if kind == "bit":
        bit = 1 << chance.randrange(8)
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], f"{bit} at {at}"
    length = chance.randrange(1, 64)
    noise = chance.choice([bytes(length), chance.randbytes(length), data[:length]])
    return data[:at] + noise + data[at + length :], f"{length} bytes at {at}"
