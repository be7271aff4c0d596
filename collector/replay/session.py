"""`python -m collector.replay.session DIRECTORY [PARENT]`: the process in which operators run.

The supervisor starts it, directly or through msprof. It obeys the control pipe in its directory:
`stop` ends it after the case in flight, end of file ends it at once, and `answered` reports that
the journal has the condition of the device that it requested. It dies with its parent if PARENT is
given. Torch is imported only after this is set up.
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
from collector.host.event_devices import AUTOLOAD, autoload_of
from collector.host.processes import die_with_parent, end_at_once, read_parent
from collector.ops.own import declare_in_session
from collector.replay.journal import JOURNAL, JournalWriter
from collector.replay.process import ANSWERED, STOP, open_control, this_process
from collector.replay.spec import read_spec

# Twice the supervisor's own limit. It ends a session whose supervisor is gone while an operator
# holds the interpreter, so that no thread of the session can notice it. What follows the last case,
# when the profiler flushes its records, is limited only by the supervisor.
_NO_HEARTBEAT_S = 120.0
_REFUSED = 1


def main(directory: Path, parent: int | None) -> None:
    """Run the session that the directory specifies, and write its journal and slices there."""
    if parent is not None:
        die_with_parent(parent)
    stop, answered = threading.Event(), threading.Event()
    signals = {STOP: stop.set, ANSWERED: answered.set}
    read_parent(open_control(directory), lambda line: signals[line]())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    journal = JournalWriter(directory / JOURNAL)
    journal.write("start", **asdict(this_process()))
    end_beats = journal.beat(lambda: faulthandler.dump_traceback_later(_NO_HEARTBEAT_S, exit=True))
    try:
        spec = read_spec(directory)
        # Before torch is imported, which loads extensions that are installed.
        os.environ[AUTOLOAD] = autoload_of(spec.backend)
        started = time.perf_counter()
        with imports.permanent():
            from collector.replay.loop import Loop

            declare_in_session(spec.operators, directory)
            loop = Loop(spec, directory, journal, answered)  # imports torch_npu for the backend npu
        loop.run(time.perf_counter() - started, stop)
        end_beats()
        faulthandler.cancel_dump_traceback_later()
    except OpmeterError as error:
        journal.write("refused", reason=" ".join(str(error).split()))
        logging.error("%s", error)
        sys.exit(_REFUSED)
    if spec.backend == "cpu":  # a driver or msprof may have work to do when a process exits
        end_at_once(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
