"""Names and quantities that the API server accepts."""

import re

from collector.codec.errors import BadInput
from jobs.objects.deployment import Deployment

_DNS = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = rf"{_DNS}(?:\.{_DNS})*"  # of RFC 1123, without its limit of each part
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_NAMESPACE = re.compile(rf"(?=.{{1,63}}$){_DNS}")
OBJECT_NAME = re.compile(rf"(?=.{{1,253}}$){_SUBDOMAIN}")  # of most objects
LABEL_VALUE = re.compile(rf"(?:{_WORD})?")
# The key of a label, the name of a resource.
QUALIFIED_NAME = re.compile(rf"(?:(?=[^/]{{1,253}}/){_SUBDOMAIN}/)?{_WORD}")
# An image has a tag or a digest: without, it is the newest one of the moment.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?:(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?@sha256:[0-9a-f]{64}|:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})"
)
_PULL_POLICIES = ("IfNotPresent", "Always", "Never")


def check_deployment_values(deployment: Deployment) -> None:
    """Raise BadInput, with the key and the option, for a value that the API server would refuse."""
    name = "the name of an object: small letters, digits, dashes and dots"
    image = "an image with a tag or a digest, such as registry.example.com/opmeter/collector:1"
    objects = ("store_secret", "worker_secret", "store_claim", "site_packages")
    rules = (
        *(("image", _IMAGE, image), ("controller_image", _IMAGE, image)),
        ("namespace", _NAMESPACE, "up to 63 small letters, digits and dashes"),
        *((key, OBJECT_NAME, name) for key in objects),
        ("pull_policy", re.compile("|".join(_PULL_POLICIES)), ", ".join(_PULL_POLICIES)),
    )
    for key, pattern, expected in rules:
        text = getattr(deployment, key)
        if text and not pattern.fullmatch(text):
            raise _refusal(key, expected, text)
    if quantity(deployment.merge_memory) <= 0:
        raise _refusal("merge_memory", "a quantity such as 8Gi", deployment.merge_memory)


def _refusal(key: str, expected: str, text: str) -> BadInput:
    option = f"--{key.replace('_', '-')}"
    return BadInput(f"{key} ({option}): expected {expected}, got {text!r}")


# Kubernetes quantities.

_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+$)?)([a-zA-Z]*)")
_FACTORS = {"m": 1e-3, "k": 1e3, "": 1.0} | {
    letter + i: base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for i, base in (("", 1000.0), ("i", 1024.0))
}
del _FACTORS["K"]  # a thousand is a small k


def quantity(text: str) -> float:
    """Return the number of a quantity of cpu, bytes or devices; 0 if it is invalid.

    Examples: `8`, `500m`, `1k`, `40Gi`."""
    found = _AMOUNT.fullmatch(text)
    return float(found[1]) * _FACTORS.get(found[2], 0.0) if found else 0.0
