"""The errors that a caller answers differently.

    OpmeterError
    ├── BadInput               what the user gave cannot be used            exit 2
    │   ├── DamagedObject      an object of a store, which nobody gave      exit 1
    │   └── NotPlain           the fast reading of a profile gives up       it is read row by row
    ├── HostFault              this machine, and no other, is to blame      exit 1; 44 in a worker
    ├── WrongNode              its device is not the plan's                 44 in a worker
    ├── WrongImage             its software or its plan is another          43 in a worker
    ├── CaseRejected           an operator's declaration refuses a case     outcome `rejected`
    │   ├── Misfit             a row breaks a rule of attention             its reading says which
    │   └── NoNumber           a column of it does not hold numbers         the same
    ├── NoOperator             nothing here can launch a kernel type        outcome `unsupported`
    ├── NotEnoughMemory        a case would not fit                         outcome `oom`
    ├── DeviceBusy             another run holds the device's lock          exit 1; 44 in a worker
    ├── SessionsFail           no session comes to its first case           exit 1; 44 in a worker
    ├── SessionStuck           a session cannot even be killed              exit 1; 46 in a worker
    ├── NoSpace                there is no room for what it records         exit 1; 48 in a worker
    ├── LocalRunFailed         no further worker could do better            exit 1; its code in pods
    ├── GangFailed             ranks did not come to their end              their cases' reason
    │   ├── RanksHang          none of this node took a step                PeersAway where none met
    │   ├── EndedElsewhere     those of another node have failed            the other node says why
    │   └── PeerLeft           another node was told to stop                nobody is to blame
    │       └── Gone           it is lost                                   the same
    │           └── Unreached  nobody is where the first node should be     47 in a pod, in the end
    ├── PeersAway              other machines of a gang are not there       exit 1; 75 in a worker
    │   └── PeersUnreached     nor did they come within ten minutes         exit 1; 47 in a worker
    ├── StoreError
    │   ├── NotFound           the key holds nothing
    │   ├── AlreadyExists      a create-only write came second
    │   ├── StoreRefused       the credentials or the policy say no         exit 45 in a worker
    │   └── StoreUnavailable   the store does not answer; try again later   exit 45 in a worker
    ├── LeaseTaken             another merge has its turn                   exit 75
    └── ClusterError           the API server says no                       exit 1; told to people
        ├── ObjectMissing      there is no such object
        ├── ObjectConflict     there is another, or it has changed
        ├── TooOld             what was asked for lies too far back         it is asked for anew
        └── ClusterAway        the API server does not answer               it is asked again
            └── WebhookFailed  it does, and a webhook of its own does not   told to people

The others stand beside what raises them. One with a private name is answered in its own module,
and is not drawn. Foreign exceptions are translated where they enter, with `raise ... from`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.codec.text import in_a_line


class OpmeterError(Exception):
    """Root of every error this project raises on purpose."""


class BadInput(OpmeterError):
    """One line about input of the user: its location, what was expected, what was found, a hint.

    The input may be a megabyte long or contain control characters for a terminal: a message shows
    a part of it and escapes what cannot be printed.
    """

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
        """The same line with a hint for a command that cannot continue without the object."""
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
