"""Every verb is registered, explains itself and stands in the README's table."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli.app import COMMANDS, GROUPS, app, app_for
from tests.unit.jobs.cli.in_process import invoked

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[4]
OF_PODS = {"controller", "work", "stack"}  # what manifests and Jobs call, not people
ALONE = {**COMMANDS, **{name: alone for name, (alone, _) in GROUPS.items() if alone}}
IN_GROUPS = {(group, name): verb for group, (_, of) in GROUPS.items() for name, verb in of.items()}
EVERY_COMMAND = {**{(name,): verb for name, verb in ALONE.items()}, **IN_GROUPS}


@pytest.mark.thorough
@pytest.mark.parametrize("command", [*EVERY_COMMAND, ("db",)], ids=" ".join)
def test_every_verb_explains_itself(command):
    answer = invoked(*command, "--help")
    assert answer.exit_code == 0 and "Usage" in answer.stdout, answer.output
    verb = EVERY_COMMAND.get(command)
    assert not verb or verb.__doc__, f"{' '.join(command)}: a docstring is its help"


def test_the_whole_command_lists_every_verb_and_group_in_their_order():
    answer = CliRunner().invoke(app, ["--help"])
    listed = answer.stdout.partition("Measure:")[2].splitlines()
    named = [line.split()[0] for line in listed if re.match("  [a-z]", line)]
    assert sorted(named) == sorted([*COMMANDS, *GROUPS])
    assert app_for(()) is app_for(("--verbose", "ops")) is app_for(("nothing",)) is app


def test_the_readme_has_a_row_for_every_verb_of_people_and_for_no_other():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `opmeter ")]
    named = set()
    for cell in cells:
        first, *others = (said.split() for said in re.findall(r"`([^`]+)`", cell))
        group = (first[1],) if first[1] in GROUPS else ()
        named.add((*group, *first[2:3]) if group else (first[1],))
        named |= {(*group, other[0]) for other in others}
    wanted = set(EVERY_COMMAND)
    missing = wanted - named - {(name,) for name in OF_PODS}
    assert not missing, "a row of README.md's table Commands is wanted, or OF_PODS here"
    assert not named - wanted, "README.md names what is no verb"
