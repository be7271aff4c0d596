"""An error message is one printable line for any cause; and all errors have one base class."""

import builtins
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec import errors
from collector.codec.errors import BadInput

pytestmark = pytest.mark.fast

_ROOT = Path(__file__).parents[4]
_CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\):", re.MULTILINE)
_DRAWN = re.compile(r"^    (?P<way>[│ ]*)[├└]── (?P<name>\w+)", re.MULTILINE)


def classes() -> set[tuple[str, str]]:
    """Each class in the sources, with each of its bases."""
    files = (path for room in ("collector", "jobs") for path in (_ROOT / room).rglob("*.py"))
    found = (one for path in files for one in _CLASS.findall(path.read_text()))
    return {(name, base.split(".")[-1]) for name, bases in found for base in bases.split(", ")}


def builtin(name: str) -> type:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) else object


def written() -> set[tuple[str, str]]:
    """Those that descend from the root."""
    below, known = set[tuple[str, str]](), {"OpmeterError"}
    left = classes()
    while more := {one for one in left if one[1] in known}:
        below, left = below | more, left - more
        known |= {name for name, _ in more}
    return below


def drawn() -> set[tuple[str, str]]:
    """The same, from the diagram."""
    found, over = set(), ["OpmeterError"]
    for line in _DRAWN.finditer(errors.__doc__ or ""):
        depth = len(line["way"]) // 4
        over[depth + 1 :] = [line["name"]]
        found.add((line["name"], over[depth]))
    return found


@given(st.text())
def test_error_message_is_one_line_on_any_terminal(actual: str) -> None:
    message = str(BadInput(f"{actual} came", path="some/key", line=3))
    assert message.startswith("some/key:3: ") and message.endswith(" came")
    assert message.isprintable()


def test_printable_characters_of_an_error_are_unchanged() -> None:
    assert str(BadInput("算子 'Add' 1 µs — no", path="a")) == "a: 算子 'Add' 1 µs — no"


def test_long_error_message_keeps_its_start_and_end() -> None:
    message = str(BadInput("A" * 100_000 + ": say less", path="some/key"))
    assert message.startswith("some/key: AAA") and message.endswith("AAA: say less")
    assert len(message) < 2000


def test_class_diagram_has_every_public_error_with_its_base_class() -> None:
    assert drawn() == {(name, parent) for name, parent in written() if name[0] != "_"}


def test_all_errors_but_the_signals_of_one_module_share_one_base_class() -> None:
    foreign = {name for name, parent in classes() if issubclass(builtin(parent), BaseException)}
    of_the_engine = {"_Refused"}  # its program cannot import opmeter
    assert foreign - of_the_engine == {"OpmeterError", "_Diverging", "_NotComputed", "_OneByOne"}
