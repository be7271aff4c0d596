"""The `opmeter` command: its verbs, in the order in which it lists them, and how it ends.

A verb is a file of this room: its options, its help and its body. It imports what it needs when it
runs, so that `opmeter --help` loads neither pandas nor boto3; what it returns is its exit code.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

import typer

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
from jobs.cli.options import repeated
from jobs.cli.plan import plan_verb
from jobs.cli.run import run_verb
from jobs.cli.status import status_verb
from jobs.cli.terminal import VisibleFormatter, say

FAILED, BAD_INPUT = 1, 2
Verb = Callable[..., int | None]
VERBS: dict[str, Verb] = {
    "pull": pull_verb,
    "run": run_verb,
    "plan": plan_verb,
    "merge": merge_verb,
    "status": status_verb,
    "parse": parse_verb,
    "microbench": microbench_verb,
    "fia-backfill": fia_backfill_verb,
    "ops": ops_verb,
    "coverage": coverage_verb,
    "compare": compare_verb,
    "grid": grid_verb,
    "doctor": doctor_verb,
    "selftest": selftest_verb,
    "launch": launch_verb,
    "controller": controller_verb,
    "work": work_verb,
    "cancel": cancel_verb,
    "pause": pause_verb,
    "logs": logs_verb,
    "stack": stack_verb,
}
# Verbs of several words, with the one that stands alone, if any.
GROUPS: dict[str, tuple[Verb | None, dict[str, Verb]]] = {
    "db": (None, database.VERBS),
    "model": (None, model.VERBS),
    "comm": (comm_verb, {"validate": validate_verb, "dfc": dfc_verb, "probe-dfc": probe_dfc_verb}),
}
_HELP = "Measures every operator an LLM runs, and keeps the numbers in one versioned database."
_LISTS = (*LISTS, *PROBE_LISTS, *DFC_LISTS)
_OF_GROUPS = {  # that do nothing by themselves
    "db": "Look at the versions of the database.",
    "model": "Look at what a model's forward pass launches.",
}


def opmeter(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="say more on the way")] = False,
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    if version:
        typer.echo(f"opmeter {__version__}")
        raise typer.Exit


def _register(group: typer.Typer, verbs: Mapping[str, Verb]) -> None:
    for name, verb in verbs.items():
        group.command(name)(_ending_with_its_code(verb))


def _ending_with_its_code(verb: Verb) -> Callable[..., None]:
    @wraps(verb)
    def run(**options: Any) -> None:
        raise typer.Exit(verb(**options) or 0)

    return run


def _standing_alone(verb: Verb) -> Callable[..., None]:
    """The verb of a group, where none of its own verbs follows."""

    @wraps(verb)
    def run(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            raise typer.Exit(verb(context, **options) or 0)

    return run


def _command(
    groups: Mapping[str, tuple[Verb | None, Mapping[str, Verb]]], verbs: Mapping[str, Verb]
) -> typer.Typer:
    made = typer.Typer(
        name="opmeter",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
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


app = _command(GROUPS, VERBS)


def app_for(words: Sequence[str]) -> typer.Typer:
    """The command with no more than the verb that the words begin with: to make the options of all
    the others takes longer than some verbs do. Where they begin with none, the whole command."""
    first = words[0] if words else ""
    if first in VERBS:
        return _command({}, {first: VERBS[first]})
    if first in GROUPS:
        return _command({first: GROUPS[first]}, {})
    return app


def main() -> None:
    """Run the command; turn what is raised on purpose into one line and an exit code."""
    words = sys.argv[1:]
    imports.without_pandas()
    try:
        app_for(words)(
            list(repeated(words, (*LISTS, *PROBE_LISTS, *DFC_LISTS)))
            if words[:1] == ["comm"]
            else words
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
