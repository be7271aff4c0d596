"""`python -m collector.replay.session DIRECTORY [PARENT]`: the process in which operators run.

It is started by the supervisor, by itself or by way of msprof. It obeys the control pipe in its
directory (`stop` ends it after the case in hand, end of file at once), and dies with its parent
where it is told which that is. Torch is imported only when all that holds.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.host import imports
from collector.host.processes import die_with_parent, end_at_once, obey_parent
from collector.replay.journal import JOURNAL, JournalWriter
from collector.replay.process import STOP, open_control, this_process
from collector.replay.spec import read_spec

# Twice the supervisor's own limit: it ends a session whose supervisor is gone while an operator
# holds the interpreter, so that no thread of ours hears of it.
_NO_HEARTBEAT_S = 120.0
_REFUSED = 1


def main(directory: Path, parent: int | None) -> None:
    """Run the session that the directory specifies, and leave its journal and slices there."""
    if parent is not None:
        die_with_parent(parent)
    stop = threading.Event()
    obey_parent(open_control(directory), lambda line: stop.set() if line == STOP else None)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    journal = JournalWriter(directory / JOURNAL)
    journal.write("start", **asdict(this_process()))
    journal.beat(lambda: faulthandler.dump_traceback_later(_NO_HEARTBEAT_S, exit=True))
    try:
        backend = _run(directory, journal, stop)
    except OpmeterError as error:
        journal.write("refused", reason=" ".join(str(error).split()))
        logging.error("%s", error)
        sys.exit(_REFUSED)
    if backend == "cpu":  # a driver or msprof may have something to do when a process exits
        end_at_once(0)


def _run(directory: Path, journal: JournalWriter, stop: threading.Event) -> str:
    """The backend on which it ran."""
    spec = read_spec(directory)
    # Before torch: an installed torch_npu would load itself, and needs CANN.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    started = time.perf_counter()
    with imports.for_good():
        from collector.replay.loop import Loop

        loop = Loop(spec, directory, journal)  # imports torch_npu, where that is the backend
    loop.run(time.perf_counter() - started, stop)
    return spec.backend


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
