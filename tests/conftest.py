"""Fixtures of every tier of tests: real profiles, and quiet settings for hypothesis."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from collector.host import imports
from tests import forkserver

# torch_npu next to another torch makes `import torch` fail unless this is set first.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
# If bytecode is not cached, each of hundreds of processes compiles all of ours again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# If several processes share two cores, a thread team that spins at each barrier uses the core that
# the awaited thread needs: seven times the processor time of a session that measures.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# numpy and scipy each start a team when they are imported, which spins for longer than the rest of
# the import takes: a fifth of a second in each process that computes one quantile.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The machine may be shared: no example fails for its time.
settings.register_profile("calm", deadline=None)
settings.load_profile("calm")

# Peaks of a self-test on this machine must not refuse a duration of a test.
os.environ["OPMETER_PEAKS"] = os.devnull

_VARIABLE = "OPMETER_TEST_PROFILES"


@pytest.fixture(scope="session")
def real_profiles() -> Path:
    """The folder of real profiles; the test is skipped if there is none."""
    folder = os.environ.get(_VARIABLE)
    if not folder:
        pytest.skip(
            f"real profiles are not part of the project: set {_VARIABLE} to a folder with "
            "train_cann8.3rc1_rank0_ascend_pt (from Ascend/msinsight, test/st/level2/rank_0) ..."
        )
    return Path(folder)


def pytest_configure(config: pytest.Config) -> None:
    forkserver.install()
    if config.option.markexpr == "fast":
        config.option.markexpr = "fast and not thorough"
    # xdist would begin with the files of most tests, and end with one process in a long drill.
    if getattr(config.option, "dist", "") == "loadfile":
        config.option.loadscopereorder = False


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what to expect of a run of all tests, which would look like a hang."""
    if config.args_source is not config.ArgsSource.TESTPATHS:
        return []
    return ["collecting prints nothing for up to a minute; then files with long tests run first"]


def pytest_unconfigure() -> None:
    forkserver.uninstall()


@pytest.fixture
def real_starts() -> Iterator[None]:
    """Processes of the product are started as users start them, and not by a fork."""
    with forkserver.real_starts():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Freeze the imports of the tests: garbage is searched only in objects that tests make."""
    with imports.permanent():
        _import_share(session.config)
        return (yield)


def _import_share(config: pytest.Config) -> None:
    """Import, in one of several processes, its share of the files that all will collect.

    The first run of a clone rewrites the assertions of every file, which takes longer than the
    imports; the other processes read the rewritten files.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    expected = (config.invocation_params.dir / argument for argument in config.args)
    files = sorted(file for folder in expected for file in folder.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # is set when the file is collected
            name = file.relative_to(config.rootpath).with_suffix("")
            importlib.import_module(".".join(name.parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, so that several processes end together."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)
