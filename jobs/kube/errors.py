"""The errors of an API server that a controller distinguishes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from collector.codec.errors import OpmeterError

logger = logging.getLogger(__name__)


class ClusterError(OpmeterError):
    """The API server refuses a request; the message is the server's."""

    is_expired = False


class ClusterAway(ClusterError):
    """The API server is unreachable or overloaded; it may report when to retry."""

    def __init__(self, message: str, retry_after_s: float = 0.0):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WebhookFailed(ClusterAway):
    """The API server responds, but an admission webhook does not: the server returns status 500."""


class ObjectMissing(ClusterError):
    """The object does not exist."""


class ObjectConflict(ClusterError):
    """An object of that name exists already, or it has changed since it was read."""


class TooOld(ClusterError):
    """The requested resource version has expired: the list must be requested again."""

    is_expired = True


def is_refusal(error: ClusterError) -> bool:
    """Return whether a user must resolve the error.

    The cluster responds and refuses, or a user's admission webhook does not respond."""
    return not isinstance(error, ClusterAway) or isinstance(error, WebhookFailed)


@contextmanager
def unless_refused(what: str) -> Iterator[None]:
    """Ignore a refusal: data that this account may not read is not required.

    Raises:
        ClusterAway: the API server is unreachable."""
    try:
        yield
    except ClusterAway:
        raise
    except ClusterError as error:
        logger.debug("%s: not available: %s", what, error)


def cluster_error(status: int, message: str, retry_after: str = "") -> ClusterError:
    """Return the error for a status code; 0 means that there was no reply."""
    text = f"{status}: {message}"
    if status == HTTPStatus.NOT_FOUND:
        return ObjectMissing(text)
    if status == HTTPStatus.CONFLICT:
        return ObjectConflict(text)
    if status == HTTPStatus.GONE:
        return TooOld(text)
    overloaded = status in (0, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
    if overloaded or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        away = WebhookFailed if "webhook" in text else ClusterAway
        return away(text, float(retry_after) if retry_after.isdigit() else 0.0)
    return ClusterError(text)
