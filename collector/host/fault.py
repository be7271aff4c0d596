"""What is wrong with one machine, told apart from what is wrong with an installation: on another
machine the same program may do well."""

from collector.errors import BadInput


class HostFault(BadInput):
    """This machine's devices, their driver or their tools cannot be used or told; the message says
    what to do about it. A worker blames its node for that, not its image."""
