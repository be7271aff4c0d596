"""The map names rooms and modules that are there, and every room."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAP = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def rooms(package):
    inits = (ROOT / package).glob("*/__init__.py")
    return {init.parent.name for init in inits}


def modules_named(text):
    """`room/module`, as the map writes them."""
    return sorted(set(re.findall(r"`([a-z]+/[a-z_0-9]+)`", text)))


@pytest.mark.fast
@pytest.mark.parametrize("name", modules_named(MAP))
def test_a_module_of_the_map_is_there(name):
    assert any((ROOT / package / f"{name}.py").is_file() for package in ("jobs", "collector"))


@pytest.mark.fast
def test_the_map_names_modules_of_both_packages():
    assert len(modules_named(MAP)) > 40


@pytest.mark.fast
@pytest.mark.parametrize("room", sorted(rooms("jobs") | rooms("collector")))
def test_every_room_is_in_the_picture(room):
    picture = MAP.split("```")[1]
    assert re.search(rf"(?m)(^|[│ ]) *{room} ", picture)


@pytest.mark.fast
@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:collector|jobs|tests|docs|\.ci)/[\w/.]+)", CONTRIBUTING)))
)
def test_what_contributing_names_is_there(path):
    assert (ROOT / path.rstrip(".")).exists()


def test_the_dry_run_of_a_site_runs_as_it_is_written():
    section = CONTRIBUTING.split("### A dry run of a site", 1)[1]
    (command,) = re.findall(r"```sh\n(opmeter .*)\n```", section)
    command = command.replace("{name}", "a2-800t").replace("opmeter", '"$PYTHON" -m jobs.cli', 1)
    path = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "kind: ConfigMap" in done.stdout and "kind: Job" in done.stdout
