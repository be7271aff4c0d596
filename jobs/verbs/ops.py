"""`opmeter ops`."""

import typer

from collector.errors import BadInput
from collector.ops.registry import all_ops, find


def ops_verb(kernel: str | None) -> None:
    """One line an operator, or one operator in full."""
    if kernel is None:
        wide = max(len(each.kernel) for each in all_ops())
        for each in all_ops():
            verified = f"  verified on {', '.join(each.verified_on)}" if each.verified_on else ""
            typer.echo(f"{each.kernel:<{wide}}  {each.call}{verified}")
        return
    op = find(kernel)
    if op is None:
        raise BadInput(f"no operator is declared for {kernel!r}; `opmeter ops` lists all")
    typer.echo(f"kernel       {op.kernel}")
    typer.echo(f"call         {op.call}")
    for index, slot in enumerate(op.slots):
        optional = " (optional)" if index in op.optional else ""
        typer.echo(f"slot {index:<7} {slot}{optional}")
    for constraint in op.constraints:
        typer.echo(f"constraint   {constraint.text}")
    typer.echo(f"verified on  {', '.join(op.verified_on) or 'no NPU yet'}")
