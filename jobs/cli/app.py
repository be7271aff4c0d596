"""The `opmeter` command: its subcommands by task, and its exit codes.

A subcommand is a function with its options, its help and its body, and returns its exit code. It
imports what it needs when it runs, so that `opmeter --help` loads neither pandas nor boto3.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from collector import __version__
from collector.codec.errors import BadInput, DamagedObject, NoDevice, NoStore, OpmeterError
from collector.host import imports
from collector.host.faults import describe_fault, describe_system_fault
from collector.host.processes import end_at_once, open_standard_streams
from jobs.cli import capture, cluster, database, launch, model, report, trace
from jobs.cli.comm import LISTS, comm_command, validate_command
from jobs.cli.comm_dfc import DFC_LISTS, PROBE_LISTS, dfc_command, probe_dfc_command
from jobs.cli.compare import compare_command
from jobs.cli.coverage import coverage_command
from jobs.cli.emulate import SWEEP, emulate_command
from jobs.cli.grid import grid_command, parse_command
from jobs.cli.host import host_command
from jobs.cli.machine import doctor_command, selftest_command, stack_command
from jobs.cli.measure import measure_command
from jobs.cli.microbench import fia_backfill_command, microbench_command
from jobs.cli.ops import ops_command
from jobs.cli.options import grouped, repeated
from jobs.cli.plan import plan_command
from jobs.cli.query import query_command
from jobs.cli.run import run_command
from jobs.cli.status import status_command
from jobs.cli.step import step_command
from jobs.cli.terminal import VisibleFormatter, say

FAILED, BAD_INPUT = 1, 2
Command = Callable[..., int | None]
# The commands by task, in the order in which `--help` lists them.
SECTIONS: dict[str, dict[str, Command]] = {
    "Ask": {
        "query": query_command,
        "coverage": coverage_command,
        "step": step_command,
        "emulate": emulate_command,
        "compare": compare_command,
    },
    "Measure": {
        "measure": measure_command,
        "run": run_command,
        "plan": plan_command,
        "status": status_command,
        "host": host_command,
    },
    "Database": {},
    "Cluster": {
        "launch": launch.launch_command,
        "pause": cluster.pause_command,
        "cancel": cluster.cancel_command,
        "logs": cluster.logs_command,
        "controller": cluster.controller_command,
        "work": cluster.work_command,
    },
    "Tools": {
        "ops": ops_command,
        "doctor": doctor_command,
        "selftest": selftest_command,
        "stack": stack_command,
    },
}
COMMANDS: dict[str, Command] = {name: one for of in SECTIONS.values() for name, one in of.items()}
_OF_PODS = frozenset({"controller", "work"})  # people do not call them: `--help` leaves them out
# Commands of several words: the one without a subcommand, if any, and the subcommands.
GROUPS: dict[str, tuple[Command | None, dict[str, Command]]] = {
    "model": (None, model.COMMANDS),
    "report": (None, report.COMMANDS),
    "capture": (None, capture.COMMANDS),
    "comm": (
        comm_command,
        {"validate": validate_command, "dfc": dfc_command, "probe-dfc": probe_dfc_command},
    ),
    "db": (None, database.COMMANDS),
    "tree": (
        None,
        {
            "parse": parse_command,
            "microbench": microbench_command,
            "grid": grid_command,
            "fia-backfill": fia_backfill_command,
        },
    ),
    "trace": (None, trace.COMMANDS),
}
SECTION_OF_GROUP = {
    "model": "Ask",
    "report": "Ask",
    "capture": "Measure",
    "comm": "Measure",
    "db": "Database",
    "tree": "Database",
    "trace": "Tools",
}
_HELP = "Measure every operator an LLM runs, and keep the results in one versioned database."
_LISTS = {"comm": (*LISTS, *PROBE_LISTS, *DFC_LISTS), "emulate": (SWEEP,)}
_GROUP_HELP = {  # without a command of their own
    "capture": "Profile running programs, and judge profiles.",
    "db": "Make, show, verify and compare the versions of the database.",
    "model": "Show what a model's forward pass launches.",
    "report": "Write HTML pages to look at and to show.",
    "trace": "Read traces of profilers and simulators.",
    "tree": "Make and measure a tree of CSVs, one per kernel type, as msmodeling has it.",
}
logger = logging.getLogger(__name__)
_OUT_OF_MEMORY = (
    "out of memory: expected more of it; stop other programs, or raise the limit (`ulimit -v`)"
)
_NOT_MAPPED = "failed to map segment from shared object"  # the loader's words
_COMPLETING = "_OPMETER_COMPLETE"  # set by the shell's completion


class _Sections(TyperGroup):
    """The whole command, whose help lists its commands by task."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, commands in SECTIONS.items():
            groups = [name for name, of in SECTION_OF_GROUP.items() if of == section]
            names = [name for name in (*commands, *groups) if not self.commands[name].hidden]
            rows = [(name, _first_sentence(self.commands[name])) for name in names]
            with formatter.section(section):
                formatter.write_dl(rows)


def _first_sentence(command: Any) -> str:
    text = " ".join((command.help or "").split("\n\n", 1)[0].split())
    return text.split(". ", 1)[0].removesuffix(".")


def opmeter(
    version: Annotated[bool, typer.Option("--version", help="print opmeter's version")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log what is done")] = False,
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    if version:
        typer.echo(f"opmeter {__version__}")
        raise typer.Exit


def _register(group: typer.Typer, commands: Mapping[str, Command]) -> None:
    for name, command in commands.items():
        group.command(name, hidden=name in _OF_PODS)(_ending_with_its_code(command))


def _ending_with_its_code(command: Command) -> Callable[..., None]:
    """The command, with options in groups; that of a group runs where no subcommand follows."""
    command = grouped(command)

    @wraps(command)
    def run(**options: Any) -> None:
        if "context" not in options or options["context"].invoked_subcommand is None:
            raise typer.Exit(command(**options) or 0)

    return run


def _typer_app(
    groups: Mapping[str, tuple[Command | None, Mapping[str, Command]]],
    commands: Mapping[str, Command],
    *,
    is_whole: bool,
) -> typer.Typer:
    made = typer.Typer(
        name="opmeter",
        cls=_Sections if is_whole else None,
        help=_HELP,
        no_args_is_help=True,
        add_completion=is_whole,
        context_settings={"max_content_width": 120},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    made.callback(invoke_without_command=True)(opmeter)
    for name, (alone, of_group) in groups.items():
        group = typer.Typer(
            help=alone.__doc__ if alone else _GROUP_HELP[name],
            no_args_is_help=alone is None,
            rich_markup_mode=None,
        )
        if alone:
            group.callback(invoke_without_command=True)(_ending_with_its_code(alone))
        _register(group, of_group)
        made.add_typer(group, name=name)
    _register(made, commands)
    return made


app = _typer_app(GROUPS, COMMANDS, is_whole=True)


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the command with no more than the subcommand that the words begin with: building the
    options of all others takes longer than some commands run. Otherwise the whole command."""
    first = words[0] if words else ""
    if first in COMMANDS:
        return _typer_app({}, {first: COMMANDS[first]}, is_whole=False)
    if first in GROUPS:
        return _typer_app({first: GROUPS[first]}, {}, is_whole=False)
    return app


def main() -> None:
    """Run the command; report an expected error in one line, with its exit code."""
    words = sys.argv[1:]
    open_standard_streams()
    imports.without_pandas()
    try:
        chosen = app if _COMPLETING in os.environ else app_for(words)
        lists = _LISTS.get(words[0] if words else "", ())
        chosen(list(repeated(words, lists)), prog_name="opmeter")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except OpmeterError as error:
        advice = error.advice if isinstance(error, DamagedObject) else ""
        say(f"opmeter: {advice or error}", err=True)
        is_input = isinstance(error, BadInput | NoDevice | NoStore) and not advice
        code = BAD_INPUT if is_input else FAILED
    except ImportError as error:  # commands import what they use
        code = _ended(_import_fault(error))
    except OSError as error:
        logger.info("an operation of the system failed", exc_info=True)
        code = _ended(describe_system_fault(error))
    except MemoryError:
        code = _ended(_OUT_OF_MEMORY)
    end_at_once(code)


def _import_fault(error: ImportError) -> str:
    if _NOT_MAPPED in str(error):
        return _OUT_OF_MEMORY
    try:
        return f"{describe_fault(error)}; `opmeter doctor` checks all imports"
    except MemoryError:
        return _OUT_OF_MEMORY


def _ended(why: str) -> int:
    with suppress(OSError):  # standard error may be what failed
        say(f"opmeter: {why}", err=True)
    return FAILED
