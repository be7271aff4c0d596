"""Gives durations to processes on the recording runtime, whose time is then virtual.

Each call takes the duration that it is given (`runtime/virtual.c`).

with durations_given(lambda text: Duration(host_ns=5_000, device_ns=100_000)) as socket:
    subprocess.run(..., env={**environment(runtime), DURATIONS: str(socket)})
"""

import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DURATIONS = "FAKE_NPU_DURATIONS"  # an environment variable: the path of the socket
_MOST_BYTES = 1 << 18  # of a call's text
_ANSWER = struct.Struct("qqq")
RUN = "RUN "  # begins the text that begins a run, and ends with its number
_TIMES = "TIMES "  # begins a text that says how often a call ran
SOURCES = 16


@dataclass(frozen=True, slots=True)
class Duration:
    """What a call takes: of the thread that makes it, and on its stream. The time of all streams is
    summed by `source`, a number below `SOURCES`."""

    host_ns: int
    device_ns: int
    source: int = 0


@contextmanager
def durations_given(
    duration_of: Callable[[str], Duration], count: Callable[[str, int], None] | None = None
) -> Iterator[Path]:
    """Give durations for the texts of calls (`calls.py`) until the block ends; yield the socket.

    A process asks for each text once in a run, which begins with the text `RUN n`. `HOST copy(...)`
    is a call of the device, too; of other calls of the host the text is the name alone, such as
    `HOST replay`. A process that asks for a text for which `duration_of` raises an error ends; the
    block raises this error at its end. `count` gets how often each call ran on the device, at the
    end of a run or before."""
    errors: list[Exception] = []

    def give(connection: socket.socket) -> None:
        with connection:
            try:
                while text := connection.recv(_MOST_BYTES).decode():
                    if text.startswith(_TIMES):
                        times, _, counted = text.removeprefix(_TIMES).partition(" ")
                        if count is not None:
                            count(counted, int(times))
                        connection.send(_ANSWER.pack(0, 0, 0))
                        continue
                    found = duration_of(text)
                    connection.send(_ANSWER.pack(found.host_ns, found.device_ns, found.source))
            except ConnectionError:  # the process ended
                pass
            except Exception as error:  # of `duration_of`, in another thread than its caller's
                errors.append(error)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # it was shut down
                return
            threading.Thread(target=give, args=(connection,), daemon=True).start()

    with (
        tempfile.TemporaryDirectory(prefix="opmeter-") as folder,  # a socket's path is short
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
    ):
        path = Path(folder) / "durations"
        server.bind(str(path))
        server.listen()
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield path
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            if errors:
                raise errors[0]
