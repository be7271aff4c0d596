"""The errors that a caller answers differently.

    OpmeterError
    ├── BadInput               what the user gave cannot be used            exit 2
    │   └── DamagedObject      an object of a store, which nobody gave      exit 1
    ├── HostFault              this machine, and no other, is to blame      exit 1; 44 in a worker
    ├── CaseRejected           an operator's declaration refuses a case     outcome `rejected`
    ├── DeviceBusy             another run holds the device's lock          exit 1
    ├── PeersAway              other machines of a gang are not there       exit 1; 75 in a worker
    │   └── PeersUnreached     nor did they come within ten minutes         exit 1; 47 in a worker
    └── StoreError
        ├── NotFound           the key holds nothing
        ├── AlreadyExists      a create-only write came second
        ├── StoreRefused       the credentials or the policy say no         exit 45 in a worker
        └── StoreUnavailable   the store does not answer; try again later   exit 45 in a worker

Foreign exceptions are translated where they enter, with `raise ... from`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.printable import in_a_line


class OpmeterError(Exception):
    """Root of every error this project raises on purpose."""


class BadInput(OpmeterError):
    """One clear line about something the user gave: what was wanted, what came, what to do.

    What came may be a megabyte long, or written to steer a terminal: it is shown in part, and what
    cannot be printed is spelled out.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None):
        self.path = path
        self.line = line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(in_a_line(where + message))


class DamagedObject(BadInput):
    """The same about an object of a store: changed, gone or another's. Whoever typed the command
    gave none of it, and cannot mend it by typing another."""

    @classmethod
    def of(cls, error: BadInput) -> "DamagedObject":
        found = cls(str(error))
        found.path, found.line = error.path, error.line
        return found

    @property
    def advice(self) -> str:
        """The same line, with what to do where nothing can be done without that object."""
        return (
            f"{self}; put it back from a backup of the store, and let `opmeter db verify` say "
            "what else is broken"
        )


@contextmanager
def stored() -> Iterator[None]:
    """For who reads a store: what cannot be used of the objects read in this block is damaged."""
    try:
        yield
    except DamagedObject:
        raise
    except BadInput as error:
        raise DamagedObject.of(error) from error


class HostFault(OpmeterError):
    """This machine's devices, their driver or their tools cannot be used or told; the message says
    what to do about it. On another machine the same program may do well: a worker blames its node
    for that, not its image."""

    def __init__(self, message: str):
        super().__init__(in_a_line(message))


class CaseRejected(OpmeterError):
    """The operator's declaration says that this case cannot be replayed; the message says why."""


class DeviceBusy(OpmeterError):
    """Another process holds the lock of the device; the message names it."""


class PeersAway(OpmeterError):
    """The ranks of a gang did not begin, because of other machines than this one: some did not
    come, or ended theirs. No case was run, and nobody here is to blame."""


class PeersUnreached(PeersAway):
    """The same after all the time that they had: they are not there, or the way between the
    machines is closed. The message says who was not reached, and by whom."""


class StoreError(OpmeterError):
    """Something about the store; the message names the store and the key."""


class NotFound(StoreError):
    """The key holds nothing."""


class AlreadyExists(StoreError):
    """A create-only write found the key taken."""


class StoreRefused(StoreError):
    """The store answers, and says no (credentials, policy)."""


class StoreUnavailable(StoreError):
    """The store does not answer, or answers that it cannot."""
