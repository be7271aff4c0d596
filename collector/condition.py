"""What a device told of itself at one moment: clock, heat and power, why its clock is not higher,
and who else has it."""

from dataclasses import dataclass
from enum import StrEnum


class Held(StrEnum):
    """Why the clock of a device is not higher than it is."""

    IDLE = "idle"
    SETTING = "setting"  # somebody wants it so: application clocks, clocks of a group or a display
    POWER_CAP = "power cap"  # the work at this clock takes all the power that the device may have
    SLOWDOWN = "slowdown"  # the hardware's, for heat or power: to half or less
    THERMAL = "heat"
    POWER_BRAKE = "power brake"  # the machine takes power away
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Condition:
    """None stands for what the device does not tell. `rated_mhz` is the clock at which its cores
    are to work, `busy` the share of the time that they worked lately. `others` are processes on it
    that are none of ours: those that computed, where that is told."""

    clock_mhz: float | None = None
    rated_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    busy: float | None = None
    held: tuple[str, ...] | None = None
    others: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A condition, and when it was read, on the clock of a session's journal."""

    at_s: float
    condition: Condition
