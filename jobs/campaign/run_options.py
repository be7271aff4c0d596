"""What the user asks for beyond the campaign, each time it is run, planned or launched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `opmeter run`, `plan` and `launch` that decide what is measured."""

    again: bool = False
    retry_failed: bool = False
    supersede_stack: bool = False
