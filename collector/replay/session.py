"""`python -m collector.replay.session DIRECTORY PARENT`: the process in which operators run.

It is started by the supervisor, obeys the pipe on its standard input (`stop` ends it after the
case in hand, end of file at once), and dies with its parent. Torch is imported only when all
that holds.
"""

import logging
import os
import sys
import threading
import time
from pathlib import Path

from collector.host.parent import die_with_parent, obey_parent
from collector.replay.journal import JOURNAL, JournalWriter
from collector.replay.spec import read_spec

STOP = "stop"


def main(directory: Path, parent: int) -> None:
    """Run the session that the directory specifies, and leave its journal and slices there."""
    die_with_parent(parent)
    stop = threading.Event()
    obey_parent(sys.stdin.fileno(), lambda line: stop.set() if line == STOP else None)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    journal = JournalWriter(directory / JOURNAL)
    journal.beat()
    spec = read_spec(directory)
    # Before torch: an installed torch_npu would load itself, and needs CANN.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    started = time.perf_counter()
    from collector.replay.loop import Loop

    import_s = time.perf_counter() - started
    Loop(spec, directory, journal).run(import_s, stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
