"""Loaded by every Python process of an engine on the recording runtime, workers included."""

import os

if os.environ.get("OPMETER_ENGINE"):
    import opmeter_hooks  # noqa: F401  patches modules when they are imported
