"""What an API server may answer, as a controller tells it apart."""

from collector.errors import OpmeterError


class ClusterError(OpmeterError):
    """The API server refuses, in its own words."""


class ClusterAway(ClusterError):
    """The API server cannot be reached, or cannot answer now."""


class ObjectMissing(ClusterError):
    """There is no such object."""


class ObjectConflict(ClusterError):
    """There is one of that name already, or it has changed since it was read."""
