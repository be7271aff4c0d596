"""`python -m tools` lists what the tools make and from what; `python -m tools TOOL` runs one."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collector.codec.errors import OpmeterError
from tools.recordings import deployments, recipes, undetermined


@dataclass(frozen=True, slots=True)
class Tool:
    """A command.

    makes      what it writes or prints
    from_what  what it reads
    options    adds its options to a parser
    run        runs it with these, and returns the exit code"""

    makes: str
    from_what: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


TOOLS = {
    "recordings": Tool(
        "collector/data/recordings/*.json.gz",
        "the recipes of tools/recordings/recipes.py and the serving stacks of "
        "`opmeter model record`",
        recipes.add_options,
        deployments.make,
    ),
    "undetermined": Tool(
        "a count of the conditions that the recorded loads of a file do not determine",
        "collector/data/recordings/*.json.gz",
        recipes.add_options,
        undetermined.count,
    ),
}


def main(words: Sequence[str]) -> int:
    """Run a tool, or list all."""
    parser = argparse.ArgumentParser(prog="python -m tools")
    commands = parser.add_subparsers(dest="tool", metavar="TOOL")
    for name, tool in TOOLS.items():
        text = f"{tool.makes}, from {tool.from_what}"
        tool.options(commands.add_parser(name, help=text, description=f"Make {text}."))
    chosen = parser.parse_args(words)
    if chosen.tool is None:
        for name, tool in TOOLS.items():
            print(f"{name}\n    makes {tool.makes}\n    from  {tool.from_what}")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        return TOOLS[chosen.tool].run(chosen)
    except OpmeterError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
