"""The files that images are built from agree with each other and with pyproject.toml."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "images"
STACKS = sorted(IMAGES.glob("*.yaml"))
LOCKED = ("controller", "collector", "build", "cpu")
DIGEST = "sha256:" + "5" * 64
pytestmark = pytest.mark.fast


def stages():
    text = (ROOT / "Dockerfile").read_text()
    found = re.split(r"(?m)^FROM \S+ AS ", text)[1:]
    return {part.split()[0]: part for part in found}


def locked(name):
    lines = (IMAGES / f"requirements-{name}.txt").read_text().replace(" \\\n", " ")
    return [line for line in lines.splitlines() if not line.startswith("#")]


def names(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in requirements}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", LOCKED)
def test_every_requirement_is_pinned_and_hashed(name):
    assert locked(name)
    for line in locked(name):
        assert re.fullmatch(r"[a-z0-9-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", line), line


def test_the_controller_has_every_dependency_of_the_project():
    assert names(project()["dependencies"]) <= names(locked("controller"))


def test_collector_requirements_exclude_numpy_and_pandas_of_the_base_image():
    assert names(locked("controller")) - names(locked("collector")) == {"numpy", "pandas"}
    assert set(locked("collector")) < set(locked("controller"))


def test_the_cpu_worker_adds_the_torch_that_the_project_names():
    (torch,) = project()["optional-dependencies"]["cpu"]
    assert any(line.startswith(f"{torch} ") for line in locked("cpu"))
    assert not names(locked("cpu")) & names(locked("controller"))


def test_every_stack_names_a_target_of_the_dockerfile_and_a_base():
    assert len(STACKS) >= 3
    for stack in STACKS:
        found = yaml.safe_load(stack.read_text())
        assert sorted(found) == ["digest", "repository", "tag", "target"], stack.name
        assert found["target"] in stages(), stack.name
        assert re.fullmatch(rf"({DIGEST[:7]}[0-9a-f]{{64}})?", found["digest"]), stack.name


@pytest.mark.parametrize("target", ["controller", "collector-cpu", "collector"])
def test_every_target_ends_as_a_numbered_user_and_installs_by_hash(target):
    stage = stages()[target]
    assert re.findall(r"(?m)^USER (\S+)$", stage)[-1] == "1000:1000"
    assert "--require-hashes" in stage


@pytest.mark.parametrize("target", ["wheel", "controller", "collector-cpu", "collector"])
def test_pip_reads_its_secret_instead_of_the_settings_of_root_in_the_base(target):
    default = "ARG PIP_CONFIG_FILE=/run/secrets/pip\n"
    assert default in (ROOT / "Dockerfile").read_text().partition("\nFROM ")[0]
    before, *_ = stages()[target].partition("pip install")
    assert "ARG PIP_CONFIG_FILE\n" in before
    assert "RUN --mount=type=secret,id=pip --mount" in before


def run_pin(folder, *arguments, skopeo):
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "skopeo").write_text(f"#!/bin/sh\n{skopeo}\n")
    (tools / "skopeo").chmod(0o755)
    path = {**os.environ, "PATH": f"{tools}:/usr/bin:/bin"}
    command = [sys.executable, IMAGES / "pin", "--registry", "here.test", *arguments]
    return subprocess.run(command, env=path, capture_output=True, text=True, timeout=60)


def test_pin_fills_in_only_the_digest(tmp_path):
    stack = tmp_path / "stack.yaml"
    before = STACKS[0].read_text()
    stack.write_text(before)
    arguments = tmp_path / "arguments"
    done = run_pin(tmp_path, stack, skopeo=f'echo "$@" > {arguments}; echo {DIGEST}')
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(before)
    assert f"docker://here.test/{found['repository']}:{found['tag']}" in arguments.read_text()
    assert stack.read_text() == re.sub(r"(?m)^digest: .*$", f"digest: {DIGEST}", before)


def test_pin_changes_nothing_if_the_registry_refuses(tmp_path):
    stack = tmp_path / "stack.yaml"
    stack.write_text(STACKS[0].read_text())
    done = run_pin(tmp_path, stack, skopeo="echo 'no such tag' >&2; exit 1")
    assert done.returncode == 1
    assert "no such tag" in done.stderr
    assert stack.read_text() == STACKS[0].read_text()


def libraries_in_a_collector(folder, **environment):
    """The value of LD_LIBRARY_PATH for the real command, in an image with a CANN that sets it."""
    (folder / "cann").mkdir(exist_ok=True)
    script = 'export LD_LIBRARY_PATH="/cann/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n'
    (folder / "cann" / "set_env.sh").write_text(script)
    (folder / "opmeter").write_text('#!/bin/sh\nprintf %s "$LD_LIBRARY_PATH"\n')
    (folder / "opmeter").chmod(0o755)
    text = (IMAGES / "opmeter-with-cann").read_text()
    text = text.replace("/usr/local/Ascend", str(folder))
    text = text.replace("/opt/opmeter/bin/opmeter", str(folder / "opmeter"))
    command = ["bash", "-u", "-c", text]
    env = {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(":")


def test_the_paths_of_atb_are_set_without_importing_torch(tmp_path):
    atb = tmp_path / "nnal" / "atb"
    atb.mkdir(parents=True)
    script = 'export LD_LIBRARY_PATH="/atb/$1"\n[ -n "$1" ] || python3 -c "import torch"\n'
    (atb / "set_env.sh").write_text(script)
    assert libraries_in_a_collector(tmp_path) == ["/atb/--cxx_abi=1"]


def test_driver_libraries_of_the_host_follow_those_of_the_image(tmp_path):
    found = libraries_in_a_collector(
        tmp_path, LD_LIBRARY_PATH="/image/lib", OPMETER_DRIVER_LIBRARIES="/driver:/driver/common"
    )
    assert found == ["/cann/lib64", "/image/lib", "/driver", "/driver/common"]
    found = libraries_in_a_collector(tmp_path, LD_LIBRARY_PATH="/image/lib")
    assert found == ["/cann/lib64", "/image/lib"]


def test_the_wheel_of_an_image_has_every_package_of_the_project():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {
        n.rstrip("*") for n in settings["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert {"collector", "jobs", "opmeter"} == packages
    ignored = (ROOT / ".dockerignore").read_text().split()
    for package in packages:
        assert f"COPY {package} /src/{package}\n" in stages()["wheel"]
        assert f"!{package}" in ignored
