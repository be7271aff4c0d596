"""What takes long is for those who name it: `pytest tests/attack/long`."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_named = any("long" in Path(argument).parts for argument in config.args)
    return True if collection_path.name == "long" and not is_named else None
