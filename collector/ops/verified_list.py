"""On which devices an operator's call was seen to launch its kernel: what the package knows."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

import yaml

_FILE = "verified_on.yaml"


def verified_on(kernel_type: str) -> tuple[str, ...]:
    """The devices, in order; empty until somebody has sent a report."""
    return tuple(device for device, kernels in sorted(_known().items()) if kernel_type in kernels)


def with_proved(device: str, kernel_types: Iterable[str]) -> str:
    """The package's list with what was proved on a device added, as the file that it comes from."""
    known = _known()
    joined = {**known, device: frozenset(kernel_types) | known.get(device, frozenset())}
    comments = [line for line in _text().splitlines() if line.startswith("#")]
    body = {device: sorted(kernels) for device, kernels in sorted(joined.items()) if kernels}
    return "\n".join((*comments, yaml.safe_dump(body, default_flow_style=False)))


@cache
def _known() -> Mapping[str, frozenset[str]]:
    return {device: frozenset(kernels) for device, kernels in yaml.safe_load(_text()).items()}


def _text() -> str:
    return (files("collector") / "data" / _FILE).read_text(encoding="utf-8")
