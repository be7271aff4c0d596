"""The errors that a caller answers differently.

    OpmeterError
    ├── BadInput               what the user gave cannot be used            exit 2
    ├── CaseRejected           an operator's declaration refuses a case     outcome `rejected`
    ├── DeviceBusy             another run holds the device's lock          exit 1
    └── StoreError
        ├── NotFound           the key holds nothing
        ├── AlreadyExists      a create-only write came second
        ├── StoreRefused       the credentials or the policy say no         exit 45 in a worker
        └── StoreUnavailable   the store does not answer; try again later   exit 45 in a worker

Foreign exceptions are translated where they enter, with `raise ... from`.
"""

from pathlib import Path


class OpmeterError(Exception):
    """Root of every error this project raises on purpose."""


class BadInput(OpmeterError):
    """One clear line about something the user gave: what was wanted, what came, what to do."""

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None):
        self.path = path
        self.line = line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)


class CaseRejected(OpmeterError):
    """The operator's declaration says that this case cannot be replayed; the message says why."""


class DeviceBusy(OpmeterError):
    """Another process holds the lock of the device; the message names it."""


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
