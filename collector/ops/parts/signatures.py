"""What the function of a release takes: one declaration serves releases that differ in it."""

from typing import Any


def accepts(api: Any, name: str) -> bool:
    """Whether an operator of torch takes an argument of this name, by its schemas. One that tells
    no schema is taken to: it raises where it does not."""
    overloads = getattr(api, "overloads", None)
    if overloads is None:
        return True
    schemas = (getattr(api, overload)._schema for overload in overloads())
    return any(argument.name == name for schema in schemas for argument in schema.arguments)
