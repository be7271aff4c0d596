"""What a worker's exit code means to whoever started it (a Job's podFailurePolicy, the local
executor): who is to blame, and whether trying again can help.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0  # every shard given to it is committed, by anyone
    FAILED = 1  # nobody foresaw it: no proof against image, node or shard
    IMAGE = 43  # what every worker of this image would see: plan hash, torch, CANN
    NODE = 44  # this node's device, driver or health
    STORE = 45  # the store is out of reach or refuses
    HANG = 46  # a hang that killing the session did not clear
    PEERS = 47  # other pods of its gang were not reached: it says which
    SPACE = 48  # disk or memory guard
    TEMPORARY = 75  # stopped before the end; nothing is wrong


# Of a shard these say nothing. Where many shards end so, it is none of them.
NOT_THE_SHARDS = frozenset({ExitCode.NODE, ExitCode.FAILED})
