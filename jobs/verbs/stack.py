"""`opmeter stack`."""

import typer

from collector.canonical import canonical_json
from collector.errors import BadInput
from collector.host.stack import local_stack
from collector.store import open_store
from collector.store.probe import probe


def stack_verb(backend: str, root: str | None, device: str | None = None) -> None:
    """The stack in one line of JSON, after a look at the store where one is named. `device` chooses
    among the names that an NPU may have."""
    if device is not None and backend != "npu":
        raise BadInput(f"--device names an NPU, and the device of backend {backend} names itself")
    if root is not None:  # raises where the store cannot be asked
        typer.echo(f"store {probe(open_store(root)).message}", err=True)
    typer.echo(canonical_json(local_stack(backend, device).as_json()).decode())
