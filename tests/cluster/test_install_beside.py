"""opmeter installs next to the packages of an image of CANN, and changes none of them.

pip resolves in an environment with the versions that vLLM-Ascend 0.18 pins; torch and torch_npu are
represented by name and requirements alone, which is all that pip reads.
"""

import json
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# Of the image's base, and the requirements of its torch_npu and vllm_ascend.
THERE = {"torch": [], "torch-npu": ["torch==2.9.0.*", "numpy"], "vllm-ascend": ["numpy<2.0.0"]}
VERSIONS = {"torch": "2.9.0", "torch-npu": "2.9.0", "vllm-ascend": "0.18.0"}
PINNED = ["numpy==1.26.4", "pandas==2.2.3", "pyyaml==6.0.2", "python-dateutil==2.9.0.post0"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the packages of the image."""
    folder = tmp_path_factory.mktemp("image")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    wheels = [str(wheel(folder, name, needs)) for name, needs in THERE.items()]
    done = pip(python, "install", "--only-binary", ":all:", *PINNED, *wheels)
    if done.returncode and not os.environ.get("CI") and not os.environ.get("OPMETER_NO_SKIP"):
        pytest.skip(f"pip cannot install {PINNED[0]} here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return python


def wheel(folder: Path, name: str, needs: list[str]) -> Path:
    """Write a wheel that contains only its name, version and requirements."""
    stem = f"{name.replace('-', '_')}-{VERSIONS[name]}"
    path = folder / f"{stem}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {VERSIONS[name]}"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def installed(python: Path) -> list[tuple[str, str]]:
    """Return what `pip freeze` lists of the environment, which for wheels names their files."""
    listed = json.loads(pip(python, "list", "--format", "json").stdout)
    return [(one["name"].lower().replace("_", "-"), one["version"]) for one in listed]


def pip(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=env,
        cwd=python.parent,
    )


def test_installation_changes_no_package_of_the_image(image, tmp_path):
    report, held = tmp_path / "report.json", tmp_path / "held.txt"
    held.write_text("\n".join(f"{name}=={version}" for name, version in installed(image)))
    done = pip(
        *(image, "install", "--dry-run", "--quiet", "--report", str(report)),
        *("--only-binary", ":all:", "--constraint", str(held), f"{ROOT}[npu]"),
    )
    assert done.returncode == 0, done.stderr
    install = json.loads(report.read_text())["install"]
    changed = {entry["metadata"]["name"].lower().replace("_", "-") for entry in install}
    assert "opmeter" in changed
    assert sorted(changed & {name for name, _ in installed(image)}) == []
    assert {"torch", "torch-npu", "numpy", "pandas"} <= {name for name, _ in installed(image)}
