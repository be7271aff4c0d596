"""The map draws the floors that import-linter keeps, and names modules that are there."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BEFORE, PICTURE, AFTER = (ROOT / "docs" / "architecture.md").read_text().split("```")
MAP = BEFORE + AFTER
ROOMS_OF_JOBS = (ROOT / "docs" / "decisions" / "0009-the-rooms-of-jobs.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
PLACES = ("jobs", "collector", "collector/comm")


def floors_kept(package):
    """The rooms of each floor, from above, and the ground, as the contract of layers has them."""
    (layers,) = (one["layers"] for one in LINTER["contracts"] if one.get("containers") == [package])
    return [sorted(re.split(" [|:] ", layer)) for layer in layers]


def floors_drawn(package):
    """The same, as the picture has them: a line that ends in `│`, or the ground's in a comma, goes
    on in the next."""
    above, below = re.split("─+\n", PICTURE)
    drawn = (above if package == "jobs" else below).replace(package, "", 1).strip()
    lines = re.sub(r"([│,])\n", r"\1", drawn).splitlines()
    rooms, ground = [one for one in lines if "ground" not in one], lines[-1].partition("ground")[2]
    floors = [sorted(cell.split()[0] for cell in line.split("│")) for line in rooms]
    return floors + ([sorted(re.findall(r"\w+", ground))] if ground else [])


def modules_named(text):
    """`room/module`, as the map writes them."""
    return sorted(set(re.findall(r"`([a-z]+/[a-z_0-9]+)`", text)))


@pytest.mark.fast
@pytest.mark.parametrize("package", ["jobs", "collector"])
def test_the_picture_draws_the_floors_that_are_kept(package):
    assert floors_drawn(package) == floors_kept(package)


@pytest.mark.fast
def test_the_page_of_the_rooms_of_jobs_has_all_of_them_in_their_order():
    (chain,) = re.findall(r"`(cli > .*)`", ROOMS_OF_JOBS)
    assert [sorted(floor.split(" | ")) for floor in chain.split(" > ")] == floors_kept("jobs")


@pytest.mark.fast
@pytest.mark.parametrize("name", modules_named(MAP))
def test_a_module_of_the_map_is_there(name):
    assert any((ROOT / place / f"{name}.py").is_file() for place in PLACES)


@pytest.mark.fast
def test_a_name_without_a_room_is_a_room_or_of_the_ground():
    known = {"jobs", "collector"}.union(*floors_kept("jobs"), *floors_kept("collector"))
    assert set(re.findall("`([a-z_0-9]+)`", MAP)) - known == set()


@pytest.mark.fast
def test_the_map_names_modules_of_both_packages():
    assert len(modules_named(MAP)) > 40


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
