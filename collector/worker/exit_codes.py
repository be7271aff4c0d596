"""The meaning of a worker's exit code for its caller (a Job's podFailurePolicy, the local
executor): what caused the failure, and whether a retry can help."""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0  # the shard is committed, by this or another worker
    FAILED = 1  # unexpected error; it does not blame the image, node or shard
    IMAGE = 43  # every worker of this image would fail: plan hash, torch, CANN
    NODE = 44  # this node's device, driver or health
    STORE = 45  # the store is unavailable or refuses requests
    HANG = 46  # a hang that killing the session did not clear
    PEERS = 47  # other pods of its gang were not reached; the worker names them
    SPACE = 48  # disk or memory guard
    TEMPORARY = 75  # stopped before the end, without an error


# These codes do not blame the shard. If many shards end so, the cause is not a shard.
NOT_THE_SHARDS = frozenset({ExitCode.NODE, ExitCode.FAILED})
