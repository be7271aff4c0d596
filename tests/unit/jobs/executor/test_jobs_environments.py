"""Environments to measure in: what is lent to them, and what is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from jobs.executor.environments import environment_of

pytestmark = pytest.mark.usefixtures("real_starts")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without packages."""
    folder = tmp_path_factory.mktemp("environments") / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.mark.parametrize("content", [None, "", "exit 3", "echo no such release >&2; false"])
def test_what_is_no_environment_is_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "set_env.sh"
    if content is not None:
        path.write_text(content)
    if content == "":
        path = tmp_path  # a folder without a Python
    with pytest.raises(BadInput, match="--environment") as failed:
        environment_of(str(path))
    assert str(path) in str(failed.value) and "\n" not in str(failed.value)


def test_torch_of_another_environment_is_not_lent(bare: Path) -> None:
    """A bare environment runs opmeter with lent packages, and is refused for its lack of torch."""
    with pytest.raises(BadInput, match="torch is not installed"):
        environment_of(str(bare)).check()


def test_own_packages_come_before_lent_ones(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (site,) = (bare / "lib").glob("python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("__version__ = '2.0.0'\n")
    found = environment_of(str(bare))
    found.check()
    assert found.stack("cpu").torch == "2.0.0"
    (site / "collector.py").write_text("__version__ = '0.0.0'\n")
    with pytest.raises(BadInput, match=r"got 0\.0\.0"):
        found.check()


def test_script_sets_the_variables_of_its_environment(tmp_path: Path) -> None:
    script = tmp_path / "set_env.sh"
    script.write_text("export OMP_NUM_THREADS=3\necho welcome\n")
    found = environment_of(str(script))
    assert found.variables["OMP_NUM_THREADS"] == "3" and found.python == Path(sys.executable)
