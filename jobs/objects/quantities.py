"""Amounts as Kubernetes writes them."""

import re

_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([a-zA-Z]*)")
_FACTORS = {"m": 1e-3, "k": 1e3, "": 1.0} | {
    letter + i: base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for i, base in (("", 1000.0), ("i", 1024.0))
}
del _FACTORS["K"]  # a thousand is a small k


def quantity(text: str) -> float:
    """Of cpu, bytes or devices: `8`, `500m`, `1k`, `40Gi`; 0 for what is none."""
    found = _AMOUNT.fullmatch(text)
    return float(found[1]) * _FACTORS.get(found[2], 0.0) if found else 0.0
