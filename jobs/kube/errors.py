"""What an API server may answer, as a controller tells it apart."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from collector.codec.errors import OpmeterError

logger = logging.getLogger(__name__)


class ClusterError(OpmeterError):
    """The API server refuses, in its own words."""

    is_expired = False


class ClusterAway(ClusterError):
    """The API server cannot be reached, or cannot answer now; it may say when to ask again."""

    def __init__(self, message: str, retry_after_s: float = 0.0):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WebhookFailed(ClusterAway):
    """The API server is there, and an admission webhook that it asks is not: a 500 of its own."""


class ObjectMissing(ClusterError):
    """There is no such object."""


class ObjectConflict(ClusterError):
    """There is one of that name already, or it has changed since it was read."""


class TooOld(ClusterError):
    """What was asked for lies too far back: the question must be put anew."""

    is_expired = True


def is_refusal(error: ClusterError) -> bool:
    """Whether it is for people: the cluster is there and says no, or an admission webhook of
    theirs is not."""
    return not isinstance(error, ClusterAway) or isinstance(error, WebhookFailed)


@contextmanager
def unless_refused(what: str) -> Iterator[None]:
    """Passes over a refusal: what this account may not see is not needed. Raises ClusterAway."""
    try:
        yield
    except ClusterAway:
        raise
    except ClusterError as error:
        logger.debug("%s: not available: %s", what, error)


def cluster_error(status: int, message: str, retry_after: str = "") -> ClusterError:
    """What a status code means; 0 is no answer at all."""
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
