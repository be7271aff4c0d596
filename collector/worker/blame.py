"""Which exit code an error of a worker has: image, node, store or disk is to blame."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from collector.codec.errors import (
    AlreadyExists,
    BadInput,
    DeviceBusy,
    HostFault,
    NotFound,
    OpmeterError,
    PeersAway,
    PeersUnreached,
    StoreError,
)
from collector.measuring.batches import SessionsFail
from collector.replay.msprof import NoSpace
from collector.replay.supervisor import SessionStuck
from collector.worker.exit_codes import ExitCode

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_BROKEN = (errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO)  # a disk, a mount, a device


class WrongImage(OpmeterError):
    """What every worker of this image would see: other software than the plan's, or a plan that
    is not the one assigned."""


class WrongNode(OpmeterError):
    """This machine's device is not the plan's."""


@contextmanager
def seen_by_all() -> Iterator[None]:
    """What every worker of an image reads in this block: an error in it is the image's or the
    plan's, WrongImage, and no other shard fares better."""
    try:
        yield
    except (BadInput, NotFound) as error:
        raise WrongImage(str(error)) from error


def exit_code(error: OpmeterError | OSError) -> ExitCode:
    """What a worker that ends with this error says of it."""
    match error:
        case HostFault() | WrongNode() | SessionsFail() | DeviceBusy():  # other nodes may do well
            return ExitCode.NODE
        case WrongImage():
            return ExitCode.IMAGE
        case PeersUnreached():
            return ExitCode.PEERS
        case PeersAway():
            return ExitCode.TEMPORARY
        case NoSpace():
            return ExitCode.SPACE
        case OSError(errno=number) if number in _FULL:
            return ExitCode.SPACE
        case OSError(errno=number) if number in _BROKEN:
            return ExitCode.NODE
        case SessionStuck():
            return ExitCode.HANG
        case NotFound() | AlreadyExists():  # the store answers, and well
            return ExitCode.FAILED
        case StoreError():
            return ExitCode.STORE
        case _:
            return ExitCode.FAILED
