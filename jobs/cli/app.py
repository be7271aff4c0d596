"""The `opmeter` command: its subcommands by task, and its exit codes.

A subcommand is a function with its options, its help and its body, and returns its exit code. It
imports what it needs when it runs, so that `opmeter --help` loads neither pandas nor boto3.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from collector import __version__
from collector.codec.errors import BadInput, DamagedObject, OpmeterError
from collector.host import imports
from collector.host.processes import end_at_once
from jobs.cli import database, model
from jobs.cli.cluster import (
    cancel_verb,
    controller_verb,
    launch_verb,
    logs_verb,
    pause_verb,
    work_verb,
)
from jobs.cli.comm import LISTS, comm_verb, validate_verb
from jobs.cli.comm_dfc import DFC_LISTS, PROBE_LISTS, dfc_verb, probe_dfc_verb
from jobs.cli.compare import compare_verb
from jobs.cli.coverage import coverage_verb
from jobs.cli.database import merge_verb, pull_verb
from jobs.cli.grid import grid_verb, parse_verb
from jobs.cli.machine import doctor_verb, selftest_verb, stack_verb
from jobs.cli.microbench import fia_backfill_verb, microbench_verb
from jobs.cli.ops import ops_verb
from jobs.cli.options import grouped, repeated
from jobs.cli.plan import plan_verb
from jobs.cli.run import run_verb
from jobs.cli.status import status_verb
from jobs.cli.terminal import VisibleFormatter, say

FAILED, BAD_INPUT = 1, 2
Verb = Callable[..., int | None]
# The commands by task, in the order in which `--help` lists them.
SECTIONS: dict[str, dict[str, Verb]] = {
    "Measure": {
        "run": run_verb,
        "plan": plan_verb,
        "status": status_verb,
        "parse": parse_verb,
        "microbench": microbench_verb,
        "fia-backfill": fia_backfill_verb,
        "grid": grid_verb,
    },
    "Models and results": {"coverage": coverage_verb, "compare": compare_verb},
    "Database": {"merge": merge_verb, "pull": pull_verb},
    "Cluster": {
        "launch": launch_verb,
        "pause": pause_verb,
        "cancel": cancel_verb,
        "logs": logs_verb,
        "controller": controller_verb,
        "work": work_verb,
    },
    "Tools": {
        "ops": ops_verb,
        "doctor": doctor_verb,
        "selftest": selftest_verb,
        "stack": stack_verb,
    },
}
VERBS: dict[str, Verb] = {name: one for of in SECTIONS.values() for name, one in of.items()}
# Commands of several words: the one without a subcommand, if any, and the subcommands.
GROUPS: dict[str, tuple[Verb | None, dict[str, Verb]]] = {
    "comm": (comm_verb, {"validate": validate_verb, "dfc": dfc_verb, "probe-dfc": probe_dfc_verb}),
    "model": (None, model.VERBS),
    "db": (None, database.VERBS),
}
_SECTION_OF_GROUP = {"comm": "Measure", "model": "Models and results", "db": "Database"}
_HELP = "Measure every operator an LLM runs, and keep the results in one versioned database."
_LISTS = (*LISTS, *PROBE_LISTS, *DFC_LISTS)
_OF_GROUPS = {  # without a command of their own
    "db": "Show, verify and compare the versions of the database.",
    "model": "Show what a model's forward pass launches.",
}
_COMPLETING = "_OPMETER_COMPLETE"  # set by the shell's completion


class _Sections(TyperGroup):
    """The whole command, whose help lists its commands by task."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, commands in SECTIONS.items():
            groups = [name for name, of in _SECTION_OF_GROUP.items() if of == section]
            rows = [(name, _first_sentence(self.commands[name])) for name in (*commands, *groups)]
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


def _register(group: typer.Typer, verbs: Mapping[str, Verb]) -> None:
    for name, verb in verbs.items():
        group.command(name)(_ending_with_its_code(grouped(verb)))


def _ending_with_its_code(verb: Verb) -> Callable[..., None]:
    @wraps(verb)
    def run(**options: Any) -> None:
        raise typer.Exit(verb(**options) or 0)

    return run


def _standing_alone(verb: Verb) -> Callable[..., None]:
    """The command of a group, where no subcommand follows."""

    @wraps(verb)
    def run(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            raise typer.Exit(verb(context, **options) or 0)

    return run


def _command(
    groups: Mapping[str, tuple[Verb | None, Mapping[str, Verb]]],
    verbs: Mapping[str, Verb],
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
            help=alone.__doc__ if alone else _OF_GROUPS[name],
            no_args_is_help=alone is None,
            rich_markup_mode=None,
        )
        if alone:
            group.callback(invoke_without_command=True)(_standing_alone(alone))
        _register(group, of_group)
        made.add_typer(group, name=name)
    _register(made, verbs)
    return made


app = _command(GROUPS, VERBS, is_whole=True)


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the command with no more than the subcommand that the words begin with: building the
    options of all others takes longer than some commands run. Otherwise the whole command."""
    first = words[0] if words else ""
    if first in VERBS:
        return _command({}, {first: VERBS[first]}, is_whole=False)
    if first in GROUPS:
        return _command({first: GROUPS[first]}, {}, is_whole=False)
    return app


def main() -> None:
    """Run the command; report an expected error in one line, with its exit code."""
    words = sys.argv[1:]
    imports.without_pandas()
    try:
        chosen = app if _COMPLETING in os.environ else app_for(words)
        chosen(
            list(repeated(words, _LISTS)) if words[:1] == ["comm"] else words, prog_name="opmeter"
        )
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except DamagedObject as error:
        say(f"opmeter: {error.advice}", err=True)
        code = FAILED
    except BadInput as error:
        say(f"opmeter: {error}", err=True)
        code = BAD_INPUT
    except OpmeterError as error:
        say(f"opmeter: {error}", err=True)
        code = FAILED
    end_at_once(code)
