"""What a self-test proved on one stack, as it is kept in a store: written once, never changed."""

from dataclasses import dataclass

from collector.canonical import readable_json, sha256_hex
from collector.decoding import decode_object
from collector.stack import Stack


@dataclass(frozen=True, slots=True)
class Verified:
    """The kernel types whose launches were seen, by every tensor, to be those asked for."""

    stack: Stack
    kernels: tuple[str, ...]
    at: str  # when, in UTC


def verified_to_json(verified: Verified) -> bytes:
    value = {"stack": verified.stack.as_json(), "kernels": verified.kernels, "at": verified.at}
    return readable_json(value)


def verified_from_json(data: bytes, *, key: str = "verified") -> Verified:
    """Raises BadInput, naming the key, for anything else."""
    return decode_object(Verified, data, what="the result of a self-test", key=key)


def verified_hash(verified: Verified) -> str:
    """Its place in a store: the hash of its bytes."""
    return sha256_hex(verified_to_json(verified))
