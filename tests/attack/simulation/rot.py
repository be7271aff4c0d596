"""Damage of stored objects: a bit, a piece, or all of it. Only objects whose damage the system must
survive; the others are tested by test_damaged_stores."""

import re
from random import Random

from tests.attack.simulation.storage import Depot

# Hints and progress: no decision depends on them.
_HINT = re.compile(r"db/HEAD\.json|campaigns/[^/]+/attempts/.*/(progress\.json|log\.zst)")
# Uncommitted objects of attempts are measured again.
_LEFTOVER = re.compile(
    r"campaigns/([^/]+)/attempts/([^/]+)/.*(raw/|part-|entry-|session-|manifest\.json).*"
)


def rot_object(depot: Depot, chance: Random) -> str:
    """Damage one object; return its key, or None if there is none that may be damaged."""
    found = [key for key in sorted(depot.objects) if _may_rot(key, depot)]
    if not found:
        return ""
    key = chance.choice(found)
    depot.objects[key] = damaged(depot.objects[key], chance)
    return key


def _may_rot(key: str, depot: Depot) -> bool:
    found = _LEFTOVER.fullmatch(key)
    if found:
        return f"campaigns/{found[1]}/committed/{found[2]}.json" not in depot.objects
    return bool(_HINT.fullmatch(key))


def damaged(data: bytes, chance: Random) -> bytes:
    """Return other bytes than these."""
    kind = chance.choice(("bit", "cut", "empty", "foreign"))
    if kind == "bit" and data:
        place = chance.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]
    if kind == "cut" and data:
        return data[: chance.randrange(len(data))]
    return b"" if kind == "empty" and data else b'{"number": 1e999}'
