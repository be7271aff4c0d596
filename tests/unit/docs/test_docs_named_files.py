"""Files, folders and modules that documents, docstrings and comments name exist."""

import fnmatch
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]
_FOLDERS = ("collector", "jobs", "opmeter", "tools", "tests", "docs", "images", "manifests", ".ci")
_PACKAGES = ("collector", "jobs", "tools", "tests")
_PATH = re.compile(rf"(?<![\w./{{-])((?:{'|'.join(map(re.escape, _FOLDERS))})/[\w./*-]*\w)")
_MODULE = re.compile(rf"(?<![\w./@-])((?:{'|'.join(_PACKAGES)})(?:\.[a-z_]\w*)+)")
# The pages of the packages name modules as `package/module`.
_SHORT = re.compile(r"`([a-z_]+/[a-z_]+)`")
# What a page makes or stands for, images, and files of other repositories.
_ELSEWHERE = (
    "SoftplusV2",
    "overlays/my-cluster",
    "tests/unit/PACKAGE",
    "opmeter/collector",
    "opmeter/controller",
    "tests/pypto_test",
    "tests/benchmark",
    "tools/perf_data_collection",
)


def test_named_files_and_modules_exist() -> None:
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\n")
    files = {name for name in found if (ROOT / name).is_file()}
    folders = {str(path) for name in files for path in Path(name).parents}
    exist = files | folders
    wrong = []
    for name in sorted(files):
        for line, text in _prose(name):
            for path in _PATH.findall(text):
                if path in exist or any(one in path for one in _ELSEWHERE):
                    continue
                if "*" not in path or not fnmatch.filter(exist, path):
                    wrong.append(f"{name}:{line}: {path}")
            for module in _MODULE.findall(text):
                if not _is_module(module, files, folders):
                    wrong.append(f"{name}:{line}: {module}")
    assert not wrong, "\n".join(wrong)


def test_packages_of_the_architecture_have_the_named_modules() -> None:
    wrong = []
    for page in ("docs/explanation/architecture.md", "docs/zh/explanation/architecture.md"):
        names = _SHORT.findall((ROOT / page).read_text("utf-8"))
        assert names, page
        for name in names:
            places = [ROOT / package / name for package in ("collector", "jobs")]
            if not any(one.is_dir() or one.with_suffix(".py").exists() for one in places):
                wrong.append(f"{page}: {name}")
    assert not wrong, "\n".join(wrong)


def _prose(name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a document, or the comments and docstrings of a module."""
    if name.endswith(".md"):
        yield from enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
    elif name.endswith(".py"):
        text = (ROOT / name).read_text("utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_text = token.type == tokenize.STRING and token.string.startswith('"""')
            if token.type == tokenize.COMMENT or is_text:
                yield token.start[0], token.string


def _is_module(name: str, files: set[str], folders: set[str]) -> bool:
    """Return whether a dotted name begins with a module, whose last words may be its members."""
    words = name.split(".")
    if words[-1] in ("py", "md", "yaml", "json", "csv"):
        return True  # a file beside the text
    path = "/".join(words)
    of_member = path.rpartition("/")[0]
    return any(f"{one}.py" in files or one in folders for one in (path, of_member) if "/" in one)
