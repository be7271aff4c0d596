"""The report file to attach to an issue: verdicts, versions, and files of the sessions.

It contains no environment variable, no campaign and no credential. It contains the twenty rows of
the user's own profile, if one was given.
"""

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from collector import __version__
from collector.codec.canonical import readable_json
from collector.codec.errors import file_errors
from collector.model import keys
from collector.model.manifest import Verified, verified_from_json, verified_hash, verified_to_json
from collector.model.peaks import MachinePeaks, peaks_as_json
from collector.model.stack import Runtime, Stack
from collector.ops.releases import with_proved
from collector.store.atomic import write_through
from collector.store.base import Store, create_named
from jobs.doctor.machine import Check

# Files of a session's folder; msprof's other records are large, and useless on other machines.
_KEPT = frozenset(
    {*("op_summary.csv", "journal.jsonl", "session.log", "spec.json", "cases.csv"), "msprof.log"}
)
VERDICTS, PROVED = "selftest.json", "verified_on.yaml"


def write_archive(
    path: Path,
    sessions: Path,
    checks: Sequence[Check],
    backend: str,
    stack: Stack,
    proved: Sequence[str],
    peaks: MachinePeaks | None = None,
) -> None:
    """Write the report atomically."""
    verdicts = {
        "opmeter": __version__,
        "backend": backend,
        "stack": stack.as_json(),
        "checks": [asdict(check) for check in checks],
        "proved": list(proved),
        "peaks": peaks_as_json(peaks) if peaks else None,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(VERDICTS, readable_json(verdicts))
        archive.writestr(PROVED, with_proved(stack.device, proved))
        for file in _kept(sessions):
            archive.write(file, str(file.relative_to(sessions)))
    with file_errors(path, "written"):
        write_through(path, buffer.getvalue())


def _kept(sessions: Path) -> Iterator[Path]:
    """Yield files of the sessions' own folders, not of a profiler's subfolders."""
    for folder in sorted(path for path in sessions.iterdir() if path.is_dir()):
        yield from sorted(file for file in folder.iterdir() if file.name in _KEPT)


# Results of self-tests in a store: written on real devices only, and shown by `opmeter ops`.


def keep(store: Store, verified: Verified) -> str:
    """Write the results unless they are stored already; return the key."""
    key = keys.verified(verified_hash(verified))
    create_named(store, key, verified_to_json(verified))
    return key


def read_kept(store: Store) -> Iterator[Verified]:
    """Yield all results of real devices.

    Raises BadInput, naming the key, for an invalid object. Objects whose names are not hashes are
    copies by a user, and are skipped."""
    for info in store.list(keys.VERIFIED):
        if not keys.is_ours(info.key):
            continue
        verified = verified_from_json(store.get(info.key), key=info.key)
        if verified.stack.runtime is Runtime.REAL:
            yield verified
