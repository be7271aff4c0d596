"""The commands of tutorials and how-tos run as written, as far as this machine can."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from collector.engine.wheel import NoRecordingRuntime
from tests.docs.blocks import (
    FIRST_HOUR,
    NEEDS,
    ROOT,
    blocks_of,
    copy_repository,
    environment,
    pages,
    run,
    translated,
    unknown_words,
)
from tests.event_device.install import event_device_site
from tests.lacking import installed_release, lacking
from tests.npu.fakecann.build import build_fake_cann, npu_host
from tests.npu.fakecann.physical import PHYSICAL, TIMES
from tests.servers.versitygw import NoServer, Versitygw
from tools import outputs
from tools import pages as generated

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_LIMIT_S = 900


_PROVIDED = (
    "laptop",
    "package",
    "stack",
    "s3",
    "npu",
    "events",
    "repository",
)  # cluster: tests/cluster


@pytest.mark.parametrize("page", [page for page in pages() if page != FIRST_HOUR])
def test_blocks_of_a_page_run_as_written(page: str, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.needs in _PROVIDED]
    missing = {
        block.of
        for block in blocks
        if block.needs == "package" and not importlib.util.find_spec(block.of)
    }
    blocks = [block for block in blocks if block.needs != "package" or block.of not in missing]
    needs = {block.needs for block in blocks}
    for release in {block.of for block in blocks if block.needs == "stack"}:
        installed_release(release)
    folder = tmp_path / "folder"
    folder.mkdir()
    with ExitStack() as servers:
        base: dict[str, str] = dict(os.environ)
        if "npu" in needs:
            base = _npu_host(tmp_path / "npu")
        if "events" in needs:
            base["PYTHONPATH"] = str(event_device_site())
        if "s3" in needs:
            base |= servers.enter_context(_bucket(tmp_path / "s3"))
        root = ROOT
        if "repository" in needs:
            copy_repository(folder)
            root = folder
        base["OPMETER_LOCKS"] = str(tmp_path / "locks")  # not those of other tests
        env = environment(tmp_path, base, root)
        if blocks:
            run(blocks, folder, env, _LIMIT_S)
    if missing:
        pytest.skip(f"not installed: pip install {' '.join(sorted(missing))}")


def test_every_block_declares_its_needs_and_names_existing_commands() -> None:
    wrong = []
    for page in pages():
        for block in blocks_of(page):
            if block.needs not in NEEDS:
                wrong.append(f"{block.place}: needs {block.needs}")
            wrong += [f"{block.place}: opmeter has no {word}" for word in unknown_words(block)]
    assert not wrong, "\n".join(wrong)


def test_translation_has_the_blocks_of_its_page() -> None:
    for page in translated():
        blocks, original = blocks_of(f"zh/{page}"), blocks_of(page)
        assert [one.text for one in blocks] == [one.text for one in original], page


def test_generated_pages_are_up_to_date() -> None:
    assert not generated.differing(), "run python -m tools pages"


def test_page_of_json_has_every_key_that_commands_print() -> None:
    assert not outputs.lacking(), "run python -m tools outputs"


@contextmanager
def _bucket(folder: Path) -> Iterator[dict[str, str]]:
    folder.mkdir()
    server = Versitygw(folder)
    try:
        server.start()
    except NoServer as error:
        lacking(str(error))
    try:
        server.make_bucket("opmeter")
        yield {**server.environment(), "AWS_ENDPOINT_URL": server.endpoint}
    finally:
        server.stop()


def _npu_host(folder: Path) -> dict[str, str]:
    """Return the environment of a host with two devices on the recording runtime, and a newer CANN
    in the folder NEW_CANN."""
    try:
        fake = build_fake_cann()
    except NoRecordingRuntime as error:
        lacking(str(error))
    host = npu_host(fake, folder, devices=2, log=folder / "calls") | {TIMES: PHYSICAL}
    newer = folder / "cann-9.0.0"
    newer.mkdir()
    (newer / "version.info").write_text("version=9.0.0\n")
    (newer / "set_env.sh").write_text(f"export ASCEND_TOOLKIT_HOME={newer}\n")
    return host | {"NEW_CANN": str(newer)}
