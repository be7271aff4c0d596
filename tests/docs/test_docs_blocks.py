"""The commands of tutorials and how-tos run as they are written, as far as this machine can."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.docs import generate
from tests.docs.blocks import NEEDS, ROOT, blocks_of, environment, pages, run, unknown_words
from tests.npu.fakecann.build import FakeCann, build_fake_cann
from tests.npu.fakecann.build import environment as npu_environment
from tests.npu.fakecann.wheel import NoFakeCann
from tests.servers.versitygw import NoServer, Versitygw

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_LIMIT_S = 900


_PROVIDED = ("laptop", "package", "s3", "npu", "repository")  # cluster: tests/cluster


@pytest.mark.parametrize("page", pages())
def test_the_blocks_of_a_page_run_as_they_are_written(page: str, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.needs in _PROVIDED]
    lacking = {
        block.of
        for block in blocks
        if block.needs == "package" and not importlib.util.find_spec(block.of)
    }
    blocks = [block for block in blocks if block.needs != "package" or block.of not in lacking]
    needs = {block.needs for block in blocks}
    folder = tmp_path / "folder"
    folder.mkdir()
    with ExitStack() as servers:
        base: dict[str, str] = dict(os.environ)
        if "npu" in needs:
            base = npu_environment(_fake_cann(), log=tmp_path / "calls")
        if "s3" in needs:
            base |= servers.enter_context(_bucket(tmp_path / "s3"))
        root = ROOT
        if "repository" in needs:
            _copy_repository(folder)
            root = folder
        env = environment(tmp_path, base, root)
        if blocks:
            run(blocks, folder, env, _LIMIT_S)
    if lacking:
        pytest.skip(f"not installed: pip install {' '.join(sorted(lacking))}")


def test_every_block_says_what_it_needs_and_names_commands_that_exist() -> None:
    wrong = []
    for page in pages():
        for block in blocks_of(page):
            if block.needs not in NEEDS:
                wrong.append(f"{block.place}: needs {block.needs}")
            wrong += [f"{block.place}: opmeter has no {word}" for word in unknown_words(block)]
    assert not wrong, "\n".join(wrong)


def test_generated_pages_are_as_the_program_says() -> None:
    assert not generate.differing(), "run python -m tests.docs.generate"


def _copy_repository(folder: Path) -> None:
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)


@contextmanager
def _bucket(folder: Path) -> Iterator[dict[str, str]]:
    folder.mkdir()
    server = Versitygw(folder)
    try:
        server.start()
    except NoServer as error:
        _cannot(str(error))
    try:
        server.make_bucket("opmeter")
        yield {**server.environment(), "AWS_ENDPOINT_URL": server.endpoint}
    finally:
        server.stop()


def _fake_cann() -> FakeCann:
    try:
        return build_fake_cann()
    except NoFakeCann as error:
        _cannot(str(error))


def _cannot(reason: str) -> NoReturn:
    if os.environ.get("CI") or os.environ.get("OPMETER_NO_SKIP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
