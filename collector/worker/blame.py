"""The exit code of a worker's error: whether the image, the node, the store or the disk is the
cause."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from collector.codec import errors
from collector.measuring.batches import SessionsFail, SoftwareFails
from collector.replay.disk_space import NoSpace
from collector.replay.process import SessionStuck
from collector.worker.exit_codes import ExitCode

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_BROKEN = (errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO)  # a disk, a mount, a device


class WrongImage(errors.OpmeterError):
    """Error that every worker of this image would see: the software differs from the plan's, or the
    plan is not the assigned one."""


class WrongNode(errors.OpmeterError):
    """Error of this machine: its device is not the plan's."""


@contextmanager
def seen_by_all() -> Iterator[None]:
    """Raise WrongImage for an error in this block. The block reads what every worker of an image
    reads, so the image or the plan is the cause, and no other shard would succeed."""
    try:
        yield
    except (errors.BadInput, errors.NotFound) as error:
        raise WrongImage(str(error)) from error


def exit_code(error: errors.OpmeterError | OSError) -> ExitCode:
    """Return the exit code of a worker that ends with this error."""
    match error:
        case WrongImage() | SoftwareFails():
            return ExitCode.IMAGE
        case (
            errors.HostFault() | WrongNode() | SessionsFail() | errors.DeviceBusy()
        ):  # other nodes may succeed
            return ExitCode.NODE
        case errors.PeersUnreached():
            return ExitCode.PEERS
        case errors.PeersAway():
            return ExitCode.TEMPORARY
        case NoSpace():
            return ExitCode.SPACE
        case OSError(errno=number) if number in _FULL:
            return ExitCode.SPACE
        case OSError(errno=number) if number in _BROKEN:
            return ExitCode.NODE
        case SessionStuck():
            return ExitCode.HANG
        case errors.NotFound() | errors.AlreadyExists():  # the store is available
            return ExitCode.FAILED
        case errors.StoreError():
            return ExitCode.STORE
        case _:
            return ExitCode.FAILED
