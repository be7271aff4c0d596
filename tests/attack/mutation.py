"""Inputs made from good ones: a few bytes changed, moved, duplicated, removed, or copied from
another input."""

import random
from collections.abc import Sequence

_CHANGES = ("bit", "noise", "cut", "tail", "double", "word", "word", "over", "splice")

# Inputs at which readers have failed, here and in other projects.
_WORDS = (
    *(b"\r", b"\n", b"\r\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80"),
    *(b'"', b'""', b"'", b",", b";", b"\t", b"\\", b"\x1b]52;c;QQ==\x07"),
    *(b"&a ", b"*a", b"<<: *a", b"!!python/name:os.system"),
    *(b"1e999", b"-1", b"0", b"NaN", b"Infinity", b"0x10", b"1_000", b"\xd9\xa3"),
    *(b"9" * 400, b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"A" * 140_000),
    *(b"null", b"true", b"{}", b"[]", b"N/A", b"../../etc/passwd"),
)


def mutated(samples: Sequence[bytes], chance: random.Random) -> bytes:
    """One input: a sample after one to four changes."""
    data = bytearray(chance.choice(samples))
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _change(data, samples, chance)
    return bytes(data)


def _change(data: bytearray, samples: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randint(0, len(data))
    end = min(len(data), at + chance.choice((1, 2, 8, 64)))
    match chance.choice(_CHANGES):
        case "bit" if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case "noise":
            data[at:end] = chance.randbytes(end - at)
        case "cut":
            del data[at:end]
        case "tail":
            del data[at:]
        case "double":
            data[at:at] = data[at:end]
        case "word":
            data[at:at] = chance.choice(_WORDS)
        case "over":
            data[at:end] = chance.choice(_WORDS)
        case "splice":
            other = chance.choice(samples)
            start = chance.randint(0, len(other))
            data[at:] = other[start:]
