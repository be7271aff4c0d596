"""Environments of serving releases, without installing any."""

import pytest

from collector.codec.errors import BadInput, OpmeterError
from collector.engine import environments
from collector.engine.environments import (
    RELEASES,
    STACKS,
    find_release,
    install_stack,
    is_serving_installed,
)

pytestmark = pytest.mark.fast

METADATA = """Metadata-Version: 2.1
Name: vllm
Requires-Dist: regex
Requires-Dist: torch==2.10.0
Requires-Dist: compressed_tensors>=0.11.0; python_version > "3.8"
Requires-Dist: ray; extra == "ray"
Requires-Dist: pandas_stubs
"""


def test_every_release_has_a_stack():
    assert {one.vllm_ascend for one in RELEASES.values()} <= set(STACKS)


def test_an_unknown_release_is_refused():
    with pytest.raises(BadInput, match="vllm-ascend-0.18"):
        find_release("vllm-ascend-0.1")


def test_requirements_exclude_extras_and_unused_packages():
    found = environments._requirements(METADATA, environments._NOT_USED)
    assert list(found) == ["regex", 'compressed_tensors>=0.11.0; python_version > "3.8"']


def test_an_interrupted_installation_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("OPMETER_CACHE", str(tmp_path))
    commands = []

    def fail(python, *arguments):
        commands.append(arguments)
        raise OpmeterError("no network")

    monkeypatch.setattr(environments, "_run", fail)
    for _ in range(2):
        with pytest.raises(OpmeterError, match="no network"):
            install_stack("0.18.0")
    assert len(commands) == 2
    assert not is_serving_installed("vllm-ascend-0.18")


def test_an_installed_stack_is_reused(monkeypatch, tmp_path):
    monkeypatch.setenv("OPMETER_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "_run", lambda python, *arguments: None)
    folder = install_stack("0.18.0")
    monkeypatch.setattr(environments, "_run", None)
    assert install_stack("0.18.0") == folder
