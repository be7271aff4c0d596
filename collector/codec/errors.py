"""The errors that callers handle differently.

    OpmeterError
    ├── BadInput               the user's input cannot be used              exit 2
    │   ├── DamagedObject      an object of a store is damaged              exit 1
    │   └── NotPlain           the fast reader of a profile gives up        it is read row by row
    ├── HostFault              this machine alone is at fault               exit 1; 44 in a worker
    │   └── NoDevice           it has no device of the backend              exit 2; 44 in a worker
    ├── WrongNode              its device is not the plan's                 44 in a worker
    ├── WrongImage             its software or its plan differs             43 in a worker
    ├── CaseRejected           an operator's declaration refuses a case     outcome `rejected`
    │   ├── Misfit             a row breaks a rule of attention             it names the rule
    │   └── NoNumber           a column of it does not hold numbers         the same
    ├── NoOperator             no operator launches this kernel type        outcome `unsupported`
    ├── NotEnoughMemory        a case would not fit                         outcome `oom`
    ├── DeviceBusy             another run holds the device's lock          exit 1; 44 in a worker
    ├── SessionsFail           no session reaches its first case            exit 1; 44 in a worker
    │   └── SoftwareFails      because of an error of the software          exit 1; 43 in a worker
    ├── SessionStuck           a session cannot even be killed              exit 1; 46 in a worker
    ├── NoSpace                no disk space for its records                exit 1; 48 in a worker
    ├── LocalRunFailed         another worker would fail too                exit 1; its code in pods
    ├── GangFailed             ranks did not finish                         their cases' reason
    │   ├── RanksHang          no rank of this node made progress           PeersAway if none met
    │   ├── EndedElsewhere     ranks of another node failed                 the other node's reason
    │   └── PeerLeft           another node was requested to stop           no node is at fault
    │       └── Gone           another node is lost                         the same
    │           └── Unreached  the first node cannot be reached             47 in a pod, in the end
    ├── PeersAway              other machines of a gang are absent          exit 1; 75 in a worker
    │   └── PeersUnreached     they did not connect within ten minutes      exit 1; 47 in a worker
    ├── StoreError
    │   ├── NotFound           the key does not exist
    │   ├── AlreadyExists      a create-only write found the key taken
    │   ├── StoreRefused       the store refuses, or is full                exit 45 in a worker
    │   │   └── NoStore        the folder or the bucket does not exist      exit 2; 45 in a worker
    │   └── StoreUnavailable   the store is unavailable; try again later    exit 45 in a worker
    ├── NoRecordingRuntime     the recording runtime cannot be built here   exit 1
    ├── EngineFailed           the serving engine refused the model         exit 1
    ├── NewerFormat            a later opmeter wrote the database           exit 1
    ├── LeaseTaken             another merge is running                     exit 75
    └── ClusterError           the API server refuses                       exit 1; shown to users
        ├── ObjectMissing      the object does not exist
        ├── ObjectConflict     the object exists, or it has changed
        ├── TooOld             the requested version is too old             it is listed again
        └── ClusterAway        the API server does not respond              it is requested again
            └── WebhookFailed  a webhook of the server does not respond     shown to users

The other errors are defined next to the code that raises them. An error with a private name is
handled in its own module, and is not listed. Foreign exceptions are translated where they are
caught, with `raise ... from`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.codec.text import in_a_line


class OpmeterError(Exception):
    """Root of every error this project raises on purpose."""


class BadInput(OpmeterError):
    """An error about the user's input, in one line: location, expected and actual value, hint.

    The input may be a megabyte long or contain control characters for a terminal: a message shows a
    part of it and escapes unprintable characters."""

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None):
        self.path = path
        self.line = line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(in_a_line(where + message))


class DamagedObject(BadInput):
    """A BadInput about an object of a store: it was changed, is missing or belongs to another key.

    The user of the command did not provide it and cannot fix it with another command line."""

    @classmethod
    def of(cls, error: BadInput) -> "DamagedObject":
        found = cls(str(error))
        found.path, found.line = error.path, error.line
        return found

    @property
    def advice(self) -> str:
        """Return the message with a hint for a command that cannot continue without the object."""
        return (
            f"{self}; restore it from a backup of the store, and run `opmeter db verify` to list "
            "all damaged objects"
        )


@contextmanager
def stored() -> Iterator[None]:
    """Raise DamagedObject for each BadInput about an object of a store that this block reads."""
    try:
        yield
    except DamagedObject:
        raise
    except BadInput as error:
        raise DamagedObject.of(error) from error


@contextmanager
def file_errors(path: Path, verb: str = "read") -> Iterator[None]:
    """Raise BadInput, which names the file, for each OSError of a block that reads or writes it."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"cannot be {verb}: {error.strerror or error}", path=path) from error


class HostFault(OpmeterError):
    """This machine's devices, their driver or their tools cannot be used or read.

    The message has a fix. The same program may work on another machine: a worker counts the failure
    against its node, not its image."""

    def __init__(self, message: str):
        super().__init__(in_a_line(message))


class NoDevice(HostFault):
    """This machine has no device of the requested backend, or too few, or none can be listed."""


class CaseRejected(OpmeterError):
    """The operator's declaration refuses to replay this case; the message has the reason."""


class DeviceBusy(OpmeterError):
    """Another process holds the lock of the device: `found` names it, `fix` is the remedy."""

    def __init__(self, found: str, fix: str):
        self.found, self.fix = found, fix
        super().__init__(f"{found}; {fix}")


class PeersAway(OpmeterError):
    """The ranks of a gang did not start because of other machines.

    Some did not connect, or ended theirs. No case was run, and this machine is not at fault."""


class PeersUnreached(PeersAway):
    """The other machines did not connect within the allowed time.

    They are absent, or the network between the machines is closed. The message names the unreached
    machines, and which machine could not reach them."""


class NewerFormat(OpmeterError):
    """A later opmeter wrote this object in a format that this one cannot read; nothing is damaged.

    The message names the version that reads it."""

    def __init__(self, message: str):
        super().__init__(in_a_line(message))


class StoreError(OpmeterError):
    """An error of the store; the message names the store and the key."""


class NotFound(StoreError):
    """The key does not exist."""


class AlreadyExists(StoreError):
    """A create-only write found the key taken."""


class StoreRefused(StoreError):
    """The store refuses the request (credentials, policy, no space left)."""


class NoStore(StoreRefused):
    """The folder or the bucket of a store does not exist; the message names it."""


class StoreUnavailable(StoreError):
    """The store does not respond, or reports that it is unavailable."""
