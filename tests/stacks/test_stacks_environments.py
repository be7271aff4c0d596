"""The product in the environment of each release's image: what pip resolves, and what can be
imported, on x86-64; what pip resolves on arm64.

The environments are those of `product_environment`: the Dockerfile's commands, on the serving
stacks of the cache (`python -m tests.npu.stock_stacks install`).
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from collector.engine.environments import RELEASES
from tests.docs.blocks import blocks_of
from tests.lacking import installed_release
from tests.stacks.distributions import Installed, installed_in, unfulfilled
from tests.stacks.environments import ARM64, PYTHONS, locked_for_arm64, pins
from tests.stacks.product_environment import (
    ROOT,
    ProductEnvironment,
    clean_environ,
    install_on_host,
    install_pinned,
    install_product,
)

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

IMPORTED = Path(__file__).with_name("imported.py")
HOST_PAGE = "how-to/first-hour-on-an-npu.md"
# Read another device, another format or pictures; the commands that need one say so.
OPTIONAL = {"pynvml", "polars", "PIL", "plotly"}


@pytest.fixture
def product(release: str) -> ProductEnvironment:
    return install_product(release)


def test_environment_resolves_as_locked(product, release):
    """pip installed every locked package, with its hash; those of the base are not hidden."""
    ours = {name: one.version for name, one in installed_in([product.site]).items()}
    locked = {name: pin.version for name, pin in pins("collector").items()}
    assert locked == {name: version for name, version in ours.items() if name in locked}
    assert set(ours) - set(locked) <= {"opmeter", "pip", "setuptools"}
    kept = {"numpy", "pandas", "torch", "torch-npu", "vllm", "vllm-ascend", "triton-ascend"}
    assert kept <= set(installed_in(product.base.folders)) - set(ours)


def test_environment_has_no_new_conflict(product, release):
    """Serving stacks contradict each other; the product adds no line to `pip check`."""
    base, ours = installed_in(product.base.folders), installed_in([product.site])
    assert_no_new_conflict(base, ours, PYTHONS[release], "x86_64")


def assert_no_new_conflict(
    base: Mapping[str, Installed], ours: Mapping[str, Installed], python: str, machine: str
) -> None:
    before = unfulfilled(base, python, machine)
    after = unfulfilled({**base, **ours}, python, machine)
    new = {name: after[name] - before.get(name, frozenset()) for name in after}
    assert {name: lines for name, lines in new.items() if lines} == {}
    assert set(after) & set(ours) == set()


def test_environment_imports_everything_that_the_product_imports(product):
    found = imported(product.python, product.environ())
    assert found["failed"] == {}
    assert set(found["absent"]) <= OPTIONAL
    of = {name: Path(place) for name, place in found["places"].items() if place}
    foreign = [
        f"{name}: {place}"
        for name, place in of.items()
        if "site-packages" in place.parts or place.is_relative_to(ROOT)
        if not any(map(place.is_relative_to, (product.site, *product.base.folders)))
        and place != IMPORTED
    ]
    assert foreign == [], "packages of another environment"
    assert of["collector"].is_relative_to(product.site)
    assert of["pyarrow"].is_relative_to(product.site)
    assert not of["numpy"].is_relative_to(product.site)
    assert not of["torch"].is_relative_to(product.site)


def imported(python: Path, env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what `imported.py` reports of an environment."""
    command = [python, "-P", IMPORTED]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def test_host_installation_keeps_the_packages_of_an_image():
    """The commands of the page, in a Python whose numpy is older than 2."""
    installed_release("vllm-ascend-0.18")
    (block,) = (block for block in blocks_of(HOST_PAGE) if "held.txt" in block.text)
    host = install_on_host("vllm-ascend-0.18", block.text)
    base = installed_in(host.base.folders)
    assert base["numpy"].version.startswith("1.26.")
    new = installed_in([host.site])
    assert "opmeter" in new
    kept = {"numpy", "pandas", "torch", "torch-npu", "vllm", "vllm-ascend", "triton-ascend"}
    assert kept <= set(base) - set(new)
    found = imported(host.python, host.environ())
    assert found["failed"] == {}
    assert set(found["absent"]) <= OPTIONAL


def test_lowest_versions_of_the_ranges_work_together():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = {}
    for text in project["dependencies"]:
        required = Requirement(text)
        (least,) = (one.version for one in required.specifier if one.operator == ">=")
        lowest[required.name] = least
    python = install_pinned(Path(sys.executable), lowest)
    found = imported(python, {**clean_environ(), "PYTHONPATH": str(ROOT)})
    assert found["failed"] == {}
    assert set(found["absent"]) <= OPTIONAL | {"torch"}


@pytest.mark.parametrize("release", RELEASES)
def test_environment_resolves_aarch64(release):
    """Every locked package has a wheel for arm64, which pip finds by the locked hashes."""
    locked = {
        name: pin.version for file in ("controller", "build") for name, pin in pins(file).items()
    }
    found = locked_for_arm64(PYTHONS[release])
    assert {name: one.version for name, one in found.items()} == locked
    assert pins("collector").items() <= pins("controller").items()
    # A package with compiled code is locked for every Python and machine, or for every machine.
    assert {pin.wheels for file in ("controller", "cpu") for pin in pins(file).values()} == {
        1,
        2,
        4,
    }


@pytest.mark.parametrize("release", RELEASES)
def test_environment_has_no_new_conflict_aarch64(release):
    """As `pip check` on x86-64, from the metadata of the wheels for arm64."""
    installed_release(release)
    python = PYTHONS[release]
    base = installed_in(install_product(release).base.folders)
    found = locked_for_arm64(python)
    ours = {name: one for name, one in found.items() if name in pins("collector")}
    assert_no_new_conflict(base, ours, python, ARM64)
