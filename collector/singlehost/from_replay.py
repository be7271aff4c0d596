"""`opmeter microbench`: measures the rows of a tree on this machine and writes what it found."""

import tempfile
import threading
from collections.abc import Callable, Collection
from math import inf
from pathlib import Path

from collector.errors import BadInput
from collector.host.peaks_file import kept_peaks
from collector.host.stack import device_locks
from collector.measurement import Outcome
from collector.measuring.batches import Batches
from collector.measuring.instrument import ReplayInstrument, SessionSettings
from collector.measuring.retries import TRIED_AGAIN
from collector.measuring.sessions import measure_all
from collector.plan import Limits, MeasureSettings
from collector.replay.lock import DeviceLock, scratch_folder
from collector.singlehost.machine import check_runtime, describe, provenance_of
from collector.singlehost.outcome import MicrobenchResult, Update, has_failed
from collector.singlehost.tree_answers import TreeAnswers
from collector.singlehost.tree_rows import TreeRows
from collector.stack import Stack

# A case may take long on a cpu, and nobody has forecast how long; a campaign has shorter limits,
# since it has others waiting.
_LIMITS = Limits(case_s=240.0)
_SESSION_CASES = 128
# With `fail_fast` a session ends with the first case that ends so: it is not tried again.
_FAILURES = frozenset(filter(has_failed, Outcome)) - TRIED_AGAIN


def microbench_by_replay(
    folder: Path,
    backend: str,
    stack: Stack,
    measure: MeasureSettings,
    *,
    kernels: Collection[str] = (),
    update: Update = Update.ALL,
    fail_fast: bool = False,
    prune_empty: bool = False,
    stop: threading.Event,
    on_progress: Callable[[int, int], None] = lambda done, cases: None,
    allow_fake: bool = False,
) -> MicrobenchResult:
    """Measure the rows of a version folder, until all have an answer or `stop` is set.

    With `fail_fast` the first case that fails ends it. Raises BadInput for a tree that is wrong,
    OpmeterError where this machine cannot measure: its sessions fail, or its NPU is a fake one,
    whose numbers come into a tree only with `allow_fake`.
    """
    rows = TreeRows(folder, kernels, update)
    _check_writable(folder)
    provenance = provenance_of(stack, backend)
    tree = TreeAnswers(rows, backend, measure, provenance, ends_at_failure=fail_fast)
    if tree.unanswered():
        if not allow_fake:
            check_runtime(stack)
        with (
            DeviceLock(device_locks(backend)[0], f"microbenchmark of {folder}"),
            scratch_folder(f"{backend}0") as scratch,
        ):
            instrument = ReplayInstrument(
                _settings(stack, backend, measure),
                scratch,
                stop,
                lambda ended, case: on_progress(tree.answered + ended, tree.total),
                stop_at=_FAILURES if fail_fast else (),
                unread=Path(tempfile.gettempdir(), f"opmeter-unread-{provenance.attempt}"),
            )
            batches = Batches(_SESSION_CASES * measure.budget_s, backend=backend)
            measure_all(tree, instrument, batches, stop=stop, on_progress=on_progress)
    return tree.result(describe(stack, backend, measure), prune_empty=prune_empty)


def _settings(stack: Stack, backend: str, measure: MeasureSettings) -> SessionSettings:
    """Without canaries: a tree has no place for what they tell."""
    return SessionSettings(
        backend,
        stack,
        measure,
        _LIMITS,
        least_limit_s=_LIMITS.case_s,
        canaries_from_s=inf,
        peaks=kept_peaks(stack),
    )


def _check_writable(folder: Path) -> None:
    """Raise BadInput, before anything is measured, where nothing could be written down."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", path=folder) from error
