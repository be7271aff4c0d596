"""The last line of a stored journal: what its session was requested to measure, and how it ended.

With it, the stored records of a session are complete: its results follow from them alone, on any
machine, so that a worker that could not store the results does not cost the device time again. The
line has the hashes of all that precedes it. A reader does not trust it: it may be damaged,
or written by another version."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import zstandard

from collector.codec.canonical import canonical_json, decode_object, sha256_hex
from collector.codec.errors import BadInput
from collector.model.measurement import Provenance

T = TypeVar("T")

MOST_BYTES = 1 << 31  # of a record that is decompressed


@dataclass(frozen=True, slots=True)
class Seal:
    """The last line of a journal: `summary` and `journal` are the sha256 of the op_summary and of
    the lines before. `session` is the session of the instrument named `of`, in its own form."""

    of: str
    provenance: Provenance
    summary: str
    journal: str
    session: str

    def decoded(self, of: str, kind: type[T], key: str) -> T:
        """Return the session. Raises BadInput for that of another instrument."""
        if self.of != of:
            raise BadInput(f"of: expected {of}, got {self.of!r}", path=key)
        return decode_object(kind, self.session.encode(), what="a session", key=key)


@dataclass(frozen=True, slots=True)
class SealedRecords:
    """The records of a pass of a session as they were stored, decompressed and checked. `key` is
    that of the journal, `lines` the journal without its seal."""

    key: str
    summary: bytes
    lines: bytes
    seal: Seal


@contextmanager
def foreign_records(key: str) -> Iterator[None]:
    """Raise BadInput, which names the key, for what stored records raise that no session of this
    version makes: an ordinal without a case, a number that is none."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BadInput(f"expected the records of a session, got {error!r}", path=key) from error


def seal(summary: Path, journal: Path, of: str, provenance: Provenance, session: Any) -> Path:
    """Write a copy of a journal with its seal next to it, and return its path. `session` is a
    dataclass."""
    lines = journal.read_bytes()
    if lines and not lines.endswith(b"\n"):  # the session was killed while it wrote
        lines += b"\n"
    value = Seal(
        of,
        provenance,
        sha256_hex(summary.read_bytes()),
        sha256_hex(lines),
        canonical_json(asdict(session)).decode(),
    )
    sealed = journal.with_name(f"sealed-{journal.name}")
    sealed.write_bytes(lines + canonical_json(asdict(value)) + b"\n")
    return sealed


def unseal(summary: bytes, journal: bytes, *, key: str) -> SealedRecords:
    """Return the records of two stored objects. Raises BadInput, which names the key, if they are
    damaged, or if the journal has no seal."""
    rows, lines = decompressed(summary, key=key), decompressed(journal, key=key)
    start = lines.rstrip(b"\n").rfind(b"\n") + 1
    found = decode_object(Seal, lines[start:], what="the seal of a journal", key=key)
    for name, data, expected in (
        ("op_summary", rows, found.summary),
        ("journal", lines[:start], found.journal),
    ):
        if sha256_hex(data) != expected:
            raise BadInput(f"expected the {name} of its seal, got other bytes", path=key)
    return SealedRecords(key, rows, lines[:start], found)


def decompressed(data: bytes, *, key: str) -> bytes:
    """Return the content of a compressed record. Raises BadInput for other data."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as stream:
            found = stream.read(MOST_BYTES + 1)
    except zstandard.ZstdError as error:
        raise BadInput(f"expected a compressed record, got {error}", path=key) from error
    if len(found) > MOST_BYTES:
        raise BadInput(f"expected at most {MOST_BYTES} bytes, got more", path=key)
    return bytes(found)
