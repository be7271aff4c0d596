"""Profiles of running programs, with a verdict on each: `with capture(folder) as session`.

Only `capture` itself imports torch: `check` and the settings work without it."""

from typing import TYPE_CHECKING, Any

from collector.capture.device_times import write_device_times

if TYPE_CHECKING:
    from collector.capture.session import CaptureSession, capture, supported_options

__all__ = ["CaptureSession", "capture", "supported_options", "write_device_times"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from collector.capture import session

    return getattr(session, name)
