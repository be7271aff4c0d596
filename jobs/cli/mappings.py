"""The op_mapping.yaml of a tree, as commands that write version folders report it."""

from pathlib import Path

from jobs.cli.terminal import say


def mapping_command(folder: Path) -> None:
    """Write the op_mapping.yaml of a version folder, unless a user's own is there."""
    from collector.database import op_mapping_writing
    from collector.database.layout import OP_MAPPING

    if not op_mapping_writing.write_mapping(folder):
        say_kept(folder / OP_MAPPING)


def say_kept(path: Path) -> None:
    say(f"{path}: unchanged, since it is not as opmeter wrote it")
