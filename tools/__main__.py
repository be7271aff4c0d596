"""`python -m tools` lists what the tools make and from what; `python -m tools TOOL` runs one."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from collector.codec.errors import OpmeterError
from tools import configs, outputs, pages, passes, pictures, programs, steps
from tools.operators import launched, proofs, record
from tools.operators.releases import matrix, wheels
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


def _no_options(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def _names(what: str) -> Callable[[argparse.ArgumentParser], None]:
    """Return the options of a tool that makes files for all things, or for those named."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar=what, help="all without it")

    return add


def _data(name: str, table: Callable[[], bytes]) -> Callable[[argparse.Namespace], int]:
    """Return what writes a table of `collector/data`."""

    def write(options: argparse.Namespace) -> int:
        path = Path(str(files("collector") / "data" / name))
        path.write_bytes(table())
        print(path)
        return 0

    return write


TOOLS = {
    "pages": Tool(
        "docs/reference/cli.md and docs/reference/columns.md",
        "the commands and columns of the program",
        pages.add_options,
        pages.make,
    ),
    "outputs": Tool(
        "docs/reference/json.md",
        "what the commands print with --json, after a campaign on this CPU",
        outputs.add_options,
        outputs.make,
    ),
    "pictures": Tool(
        "docs/pictures/*.svg of what commands print",
        "a quickstart, run now or in FOLDER",
        _names("FOLDER"),
        lambda options: pictures.make(options.names),
    ),
    "calls": Tool(
        "tests/npu/calls/*.txt and tests/npu/graph_calls/*.txt",
        "the fixture rows, the stock torch_npu and its torchair",
        _names("KERNEL"),
        lambda options: record.main(options.names),
    ),
    "launched": Tool(
        "collector/data/launched.csv, the C function of each operator's call",
        "tests/npu/calls/*.txt",
        _no_options,
        _data("launched.csv", launched.launched_table),
    ),
    "proofs": Tool(
        "collector/data/proofs.csv, the evidence of each operator",
        "the recorded calls, and lists of those that profiles and CANN's sources show",
        _no_options,
        _data("proofs.csv", proofs.proofs_table),
    ),
    "schemas": Tool(
        "tools/operators/releases/schemas/*.txt, the functions of each release",
        "the wheels of torch_npu and vllm_ascend",
        _names("RELEASE"),
        lambda options: wheels.make(options.names),
    ),
    "releases": Tool(
        "collector/data/releases.csv, which release has which function",
        "tools/operators/releases/schemas/*.txt and the recorded calls",
        _no_options,
        _data("releases.csv", matrix.releases_table),
    ),
    "recordings": Tool(
        "collector/data/recordings/*.json.gz",
        "the recipes of tools/recordings/recipes.py and the serving stacks of "
        "`opmeter model record`",
        recipes.add_options,
        deployments.make,
    ),
    "steps": Tool(
        "docs/evaluation/steps.md, predictions next to published times of passes",
        "the packaged recordings, and those in a folder",
        steps.add_options,
        steps.make,
    ),
    "configs": Tool(
        "docs/evaluation/recorded-configs.md, what published models launch or who refuses them",
        "the config.json of tools/published.py, and the serving stacks of `opmeter model record`",
        configs.add_options,
        configs.make,
    ),
    "programs": Tool(
        "docs/evaluation/programs.md, how much of programs of torch is measured",
        "tests/fixtures/programs/*.py, captured and measured now",
        _names("PROGRAM"),
        lambda options: programs.make(options.names),
    ),
    "passes": Tool(
        "docs/evaluation/passes.md, passes of small decoders next to their predictions",
        "captures and measurements on this CPU, now or in FOLDER",
        passes.add_options,
        passes.make,
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
