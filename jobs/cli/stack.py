"""`opmeter stack`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from collector.errors import BadInput

if TYPE_CHECKING:
    from collector.store.base import Store


def stack_verb(
    *,
    backend: Annotated[str, typer.Option(help="npu, cuda or cpu")] = "npu",
    root: Annotated[str | None, typer.Option(help="also look whether this store answers")] = None,
    device: Annotated[
        str | None, typer.Option(help="the NPU's name, where its chip may have several")
    ] = None,
    limit: Annotated[float, typer.Option(help="give up after so many seconds; 0 for never")] = 0.0,
) -> None:
    """Print the stack of this machine as JSON, in one line."""
    from collector.canonical import canonical_json
    from collector.host.stack import local_stack
    from collector.store import open_store

    if device is not None and backend != "npu":
        raise BadInput(f"--device names an NPU, and the device of backend {backend} names itself")
    with _ending_after(limit):
        if root is not None:
            store = open_store(root, said_by="--root")
            typer.echo(f"store {_answering(store)}", err=True)
        found = local_stack(backend, device)
    typer.echo(canonical_json(found.as_json()).decode())


def _answering(store: Store) -> str:
    """Where it is, after one question of a kind that workers ask: they may list, and need not be
    allowed to write anywhere but where they measure. Raises where the store does not answer."""
    from collector import keys

    next(iter(store.list(keys.CAMPAIGNS)), None)
    return f"{store.url} answers"


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
