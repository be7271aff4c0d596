"""`opmeter stack`."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from collector.canonical import canonical_json
from collector.errors import BadInput
from collector.host.stack import local_stack
from collector.store import open_store
from collector.store.probe import probe


def stack_verb(
    backend: str, root: str | None, device: str | None = None, limit_s: float = 0.0
) -> None:
    """The stack in one line of JSON, after a look at the store where one is named. `device` chooses
    among the names that an NPU may have. After `limit_s`, where it is not 0, this process ends."""
    if device is not None and backend != "npu":
        raise BadInput(f"--device names an NPU, and the device of backend {backend} names itself")
    with _ending_after(limit_s):
        if root is not None:  # raises where the store cannot be asked
            typer.echo(f"store {probe(open_store(root)).message}", err=True)
        found = local_stack(backend, device)
    typer.echo(canonical_json(found.as_json()).decode())


@contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """End this process with a word where it takes longer: a driver that hangs lets go of nobody,
    and process 1 of a container is not killed by an alarm."""

    def give_up() -> None:
        typer.echo(f"no answer within {seconds:g} s: the driver or the store hangs", err=True)
        os._exit(1)

    if not seconds:
        yield
        return
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
