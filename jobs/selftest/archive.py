"""One file to attach to a report: verdicts, versions, and what the sessions left. No environment
variable, no campaign and no credential is in it; of the user's own profile the twenty rows are.
"""

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from collector import __version__
from collector.codec.canonical import readable_json
from collector.model import keys
from collector.model.manifest import Verified, verified_from_json, verified_hash, verified_to_json
from collector.model.peaks import MachinePeaks, peaks_as_json
from collector.model.stack import Runtime, Stack
from collector.ops.releases import with_proved
from collector.store.atomic import write_whole
from collector.store.base import Store, create_named
from jobs.doctor.machine import Check

# Of a session's folder; what msprof recorded besides is large, and of no use elsewhere.
_KEPT = frozenset(
    {
        *("op_summary.csv", "journal.jsonl", "session.log", "spec.json", "cases.csv"),
        "msprof.log",
    }
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
    """Write the report, whole or not at all."""
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
    write_whole(path, buffer.getvalue())


def _kept(sessions: Path) -> Iterator[Path]:
    """Files of the sessions' own folders; those that a profiler made lie deeper."""
    for folder in sorted(path for path in sessions.iterdir() if path.is_dir()):
        yield from sorted(file for file in folder.iterdir() if file.name in _KEPT)


# What self-tests proved, in a store: written on real devices only, and shown by `opmeter ops`.


def keep(store: Store, verified: Verified) -> str:
    """Write it where nothing of the kind is; its key."""
    key = keys.verified(verified_hash(verified))
    create_named(store, key, verified_to_json(verified))
    return key


def read_kept(store: Store) -> Iterator[Verified]:
    """Everything that was proved on real devices. Raises BadInput, naming the key, for what is
    none; objects whose names no hash makes are somebody's copies, and are passed over."""
    for info in store.list(keys.VERIFIED):
        if not keys.is_ours(info.key):
            continue
        verified = verified_from_json(store.get(info.key), key=info.key)
        if verified.stack.runtime is Runtime.REAL:
            yield verified
