"""A database in the interfaces and formats of other programs."""
