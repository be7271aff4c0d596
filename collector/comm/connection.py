"""Lines of JSON between two nodes of a gang, over TCP; a node that is lost is noticed.

Whoever is told nothing of the other's end, because its machine is gone, learns it from the kernel:
what is silent for half a minute, keep-alives included, is gone.
"""

import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from collector.comm.gang import PeerLeft

_SEND_S = 30.0
# A lost machine is noticed after 10 s of silence and 3 keep-alives 5 s apart.
_IDLE_S, _BETWEEN_S, _COUNT = 10, 5, 3
_AT_ONCE_BYTES = 1 << 16
LONGEST_BYTES = 1 << 26  # a plan of every collective of a site is a thousandth of it

Message = Mapping[str, Any]


class Gone(PeerLeft):
    """The other end is not there any more."""


class Connection:
    """One end of a conversation with another node. Raises Gone where the other end has left."""

    def __init__(self, link: socket.socket, other: str):
        self._link, self.other = link, other
        self._unread = bytearray()
        self.longest_bytes = LONGEST_BYTES
        link.settimeout(_SEND_S)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _COUNT)
        # Of what was sent and is not acknowledged, keep-alives say nothing.
        silent_s = _IDLE_S + _BETWEEN_S * _COUNT
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * silent_s)

    def fileno(self) -> int:
        return self._link.fileno()

    def say(self, message: Message) -> None:
        """Send one message."""
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Gone(f"{self.other}: cannot send a message: {error}") from error

    def heard(self, wait_s: float = 0.0) -> Message | None:
        """The next message; None where none is whole after so long."""
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._link], [], [], left_s)
            if not ready:
                return None
            self._read()
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        return _message(line, self.other)

    def close(self) -> None:
        self._link.close()

    def _read(self) -> None:
        try:
            more = self._link.recv(_AT_ONCE_BYTES)
        except OSError as error:
            raise Gone(f"{self.other}: connection lost: {error}") from error
        if not more:
            raise Gone(f"{self.other}: connection closed")
        if len(self._unread) > self.longest_bytes:
            raise Gone(
                f"{self.other}: expected a message of at most {self.longest_bytes} bytes, got more"
            )
        self._unread += more


def _message(line: bytes, other: str) -> Message:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Gone(f"{other}: expected a gang message in JSON, got other bytes") from error
    if not isinstance(found, dict):
        raise Gone(f"{other}: expected a JSON object, got {type(found).__name__}")
    return found
