"""The product in the environment of each release's image on arm64, emulated and without torch: what
can be imported, and that commands give what they give here, on a store that was made here."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collector.engine.environments import RELEASES
from tests.lacking import lacking
from tests.stacks.arm64 import LACKING, OF_DEBIAN, Arm64Product, NoArm64, install_on_arm64
from tests.stacks.environments import PYTHONS
from tests.stacks.imported import PACKAGES, names_in
from tests.stacks.product_environment import PLACE
from tests.unit.collector.database.imported_tree import PATH, write_tree
from tests.unit.jobs.cli.in_process import opmeter_here

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

_PROGRAMS = ("in_one_process.py", "imported.py")
# A module of which every name is a class.
_STAND_IN = """\
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Exception,), {})
"""
# Not in the requirements of an image.
_ABSENT = {"torch", "pynvml", "polars", "PIL"}
_MEASURED = f"""\
campaign: few
sources: [{{tree: tree/{PATH}}}]
backend: cpu
update: all
measure: {{repeats: 3}}
quality: {{repeat_share: 0}}
"""
_PLANNED = f"""\
campaign: npus
sources: [{{tree: tree/{PATH}}}]
backend: npu
update: all
target: {{device: ATLAS_800_A3_752T_128G_DIE, vllm: 0.18.0, torch: 2.9.0, torch_npu: 2.9.0,
  cann: 8.5.0, driver: 25.5, firmware: 7.8}}
"""
_QUERY = ("query", "Add", "--shape", "32,64;32,64", "--directory", PATH, "--json")
# Each with a name. The output of those of `_SAME` is the same on every machine.
_CHAIN = {
    "coverage": ("coverage", "few.yaml", "--json", "--root", "store"),
    "plan": ("plan", "npus.yaml", "--root", "planned"),
    "import": ("db", "import", "tree", "--root", "store"),
    "log": ("db", "log", "--json", "--root", "store"),
    "query": (*_QUERY, "--root", "store"),
    "verify": ("db", "verify", "--root", "store"),
    "report": ("report", "db", "--output", "pages", "--root", "store"),
    "pull": ("db", "pull", "pulled", "--root", "store"),
}
_SAME = ("coverage", "import", "query", "verify", "report", "pull")
# What the commands write, but for names of the store and times.
_WRITTEN = ("planned/**/*.json", "planned/**/*.csv", "pages/**/*.csv", "pulled/*/**/*.*")


@dataclass(frozen=True, slots=True)
class Here:
    """What commands gave on this machine: the folder before and after them, and their outputs."""

    before: Path
    after: Path
    outputs: Mapping[str, str]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Here:
    folder = tmp_path_factory.mktemp("here")
    before, after = folder / "before", folder / "after"
    make_store(before)
    shutil.copytree(before, after)
    done = {name: opmeter_here(*words, cwd=after) for name, words in _CHAIN.items()}
    assert {name: one.stderr for name, one in done.items() if one.returncode} == {}
    return Here(before, after, {name: one.stdout for name, one in done.items()})


def installed(release: str) -> Arm64Product:
    try:
        return install_on_arm64(release)
    except NoArm64 as error:
        lacking(str(error))


@pytest.mark.parametrize("release", RELEASES)
def test_environment_imports_everything_and_the_chain_runs_aarch64(release, here, tmp_path):
    product, work = installed(release), tmp_path / "work"
    shutil.copytree(here.before, work)
    imports, commands = tried(product, work, list(_CHAIN.values()))
    check_imports(product, imports)
    done = dict(zip(_CHAIN, commands, strict=True))
    assert {name: one for name, one in done.items() if one[0]} == {}
    printed = {name: text.replace("/work", str(here.after)) for name, (_, text, _) in done.items()}
    assert {name: printed[name] for name in _SAME} == {name: here.outputs[name] for name in _SAME}
    newest, expected = (json.loads(outputs["log"])[0] for outputs in (printed, here.outputs))
    assert newest["content_hash"] == expected["content_hash"]
    for pattern in _WRITTEN:
        assert (written := contents(here.after, pattern)) and contents(work, pattern) == written


@pytest.mark.parametrize("release", [name for name in RELEASES if PYTHONS[name] == OF_DEBIAN])
def test_doctor_of_an_image_lacks_torch_only_aarch64(release, tmp_path):
    """A process of the installed command, as a user starts it."""
    done = installed(release).run([f"{PLACE}/bin/opmeter", "doctor"], tmp_path)
    assert done.returncode == 1, done.stderr
    states = [(line.split() * 2)[:2] for line in done.stdout.splitlines()]
    assert [name for state, name in states if state == "FAIL"] == ["torch"], done.stdout
    assert {"imports", "store"} <= {name for state, name in states if state == "ok"}


def make_store(folder: Path) -> None:
    """Make a store with measurements of this machine, and the inputs of the chain."""
    write_tree(folder / "tree", {16: "20", 64: "30", 256: "0"}, {163_840: "12.1"})
    (folder / "few.yaml").write_text(_MEASURED)
    (folder / "npus.yaml").write_text(_PLANNED)
    done = opmeter_here("run", "few.yaml", "--root", "store", cwd=folder)
    assert done.returncode == 0, done.stderr


def tried(
    product: Arm64Product, work: Path, commands: Sequence[Sequence[str]]
) -> tuple[Mapping[str, Any], Sequence[tuple[int, str, str]]]:
    """Return what `in_one_process.py` reports of imports and commands."""
    for program in _PROGRAMS:
        shutil.copy(Path(__file__).with_name(program), work)
    for name in LACKING.get(product.root.python, ()):
        (work / f"{name}.py").write_text(_STAND_IN)
    names = sorted({name for package in PACKAGES for name in names_in(package)})
    words = [f"{PLACE}/bin/python", f"/work/{_PROGRAMS[0]}"]
    done = product.run(words, work, json.dumps({"names": names, "commands": commands}))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    return found["imports"], found["commands"]


def check_imports(product: Arm64Product, found: Mapping[str, Any]) -> None:
    assert found["failed"] == {}
    assert set(found["absent"]) <= _ABSENT
    for name, top in (
        *((name, str(PLACE)) for name in ("collector", "pyarrow", "scipy")),
        *((name, product.root.packages) for name in ("numpy", "pandas")),
    ):
        assert found["places"][name].startswith(f"{top}/")


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    files = [path for path in folder.glob(pattern) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
