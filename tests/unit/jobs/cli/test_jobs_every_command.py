"""Every command is registered and has a help text."""

import re

import pytest
from click import Context
from typer.main import get_command
from typer.testing import CliRunner

from jobs.cli.app import COMMANDS, GROUPS, app, app_for
from jobs.objects.site import bundled_sites
from tests.unit.jobs.cli.in_process import invoked

pytestmark = pytest.mark.fast

ALONE = {**COMMANDS, **{name: alone for name, (alone, _) in GROUPS.items() if alone}}
IN_GROUPS = {(group, name): verb for group, (_, of) in GROUPS.items() for name, verb in of.items()}
EVERY_COMMAND = {**{(name,): verb for name, verb in ALONE.items()}, **IN_GROUPS}


@pytest.mark.thorough
@pytest.mark.parametrize("command", [*EVERY_COMMAND, ("db",)], ids=" ".join)
def test_every_command_has_help(command):
    answer = invoked(*command, "--help")
    assert answer.exit_code == 0 and "Usage" in answer.stdout, answer.output
    verb = EVERY_COMMAND.get(command)
    assert not verb or verb.__doc__, f"{' '.join(command)}: the help text is its docstring"


def test_the_examples_of_commands_name_bundled_sites():
    named = {
        (command, site)
        for command, verb in EVERY_COMMAND.items()
        for site in re.findall(r"--site (\S+)", verb.__doc__ or "")
    }
    assert named and {site for _, site in named} <= {*bundled_sites()}, named


def test_a_default_is_written_in_one_way():
    other = re.compile(r"  \[(?!default: |required|env var: |x>|[0-9])")
    found, left = [], [get_command(app)]
    while left:
        command = left.pop()
        left += getattr(command, "commands", {}).values()
        records = [one.get_help_record(Context(command)) for one in command.params]
        found += [record for record in records if record and other.search(record[1])]
    assert found == []


def test_root_help_lists_every_command_of_people_once():
    answer = CliRunner().invoke(app, ["--help"])
    listed = answer.stdout.partition("Ask:")[2].splitlines()
    named = [line.split()[0] for line in listed if re.match("  [a-z]", line)]
    assert sorted(named) == sorted({*COMMANDS, *GROUPS} - {"controller", "work"})
    assert app_for(()) is app_for(("--verbose", "ops")) is app_for(("nothing",)) is app
