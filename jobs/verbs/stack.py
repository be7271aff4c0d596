"""`opmeter stack`."""

import typer

from collector.canonical import canonical_json
from collector.host.stack import local_stack
from collector.store import open_store
from collector.store.probe import probe


def stack_verb(backend: str, root: str | None) -> None:
    """The stack in one line of JSON, after a look at the store where one is named."""
    if root is not None:  # raises where the store cannot be asked
        typer.echo(f"store {probe(open_store(root)).message}", err=True)
    typer.echo(canonical_json(local_stack(backend).as_json()).decode())
