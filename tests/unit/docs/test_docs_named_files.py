"""Files and modules that documents, docstrings and comments name exist."""

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
_SUFFIXES = (".py", ".md", ".yaml", ".csv", ".c", ".h", ".S", ".cpp", ".js", ".json", ".txt")
_PATH = re.compile(rf"(?<![\w./{{-])((?:{'|'.join(map(re.escape, _FOLDERS))})/[\w./*-]*\w)")
_MODULE = re.compile(rf"(?<![\w./@-])((?:{'|'.join(_PACKAGES)})(?:\.[a-z_]\w*)+)")
# What a page makes, and files of other repositories.
_ELSEWHERE = (
    "SoftplusV2",
    "overlays/my-cluster",
    "tests/pypto_test",
    "tests/benchmark",
)


def test_named_files_and_modules_exist() -> None:
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\n")
    files = {name for name in found if (ROOT / name).is_file()}
    folders = {str(path) for name in files for path in Path(name).parents}
    wrong = []
    for name in sorted(files):
        for line, text in _prose(name):
            for path in _PATH.findall(text):
                is_file = path.endswith(_SUFFIXES) and not any(one in path for one in _ELSEWHERE)
                if is_file and not fnmatch.filter(files, path):
                    wrong.append(f"{name}:{line}: {path}")
            for module in _MODULE.findall(text):
                if not _is_module(module, files, folders):
                    wrong.append(f"{name}:{line}: {module}")
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
