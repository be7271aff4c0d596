"""A folder of pages: HTML with their data, tables as CSV, and the assets that draw them."""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from collector import __version__
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_TABLE_BYTES, check_writable, read_small_file, refuse_links
from collector.codec.scratch import fresh_folder, is_temporary, move_files
from collector.codec.table import table_bytes
from collector.codec.text import whole_in_one_line
from collector.store.atomic import write_whole

LANGUAGES = ("en", "zh")
_MARKER = ".opmeter-report.json"
_LONGEST_NAME = 255  # of a file, with its folders
_LIBRARIES = ("d3.min.js", "plot.umd.min.js")
_SHARED = ("report.css", "labels.js", "report.js", "LICENSES.txt")
_PLACE = re.compile(r"{{(\w+)}}")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?|-")
# In a script, `<` could end the script element, and two characters end a line of JavaScript.
_ESCAPES = {ord("<"): "\\u003c", 0x2028: "\\u2028", 0x2029: "\\u2029"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is written as a CSV: its columns, and rows of texts and numbers."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a report. `path` is its path in the folder, without `.html`. `kind` names the
    script in `assets` that draws `data`. `up` is the path of the page above it, if there is one.
    `tables` are CSVs by their path, without `.csv`. `reload_s` is the time after which a page of
    something that still changes loads itself again."""

    path: str
    kind: str
    title: str
    data: Mapping[str, Any]
    tables: Mapping[str, Table] = field(default_factory=dict)
    up: str = ""
    reload_s: int = 0


def file_stem(name: str) -> str:
    """Return a file name for a name from data: the name itself, if it is a plain one, or what is
    plain of it with a part of its hash."""
    if _PLAIN.fullmatch(name) and not name.endswith("."):
        return name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40].strip("_")
    return f"{plain or 'name'}-{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def short_row(row: Iterable[Any]) -> list[Any]:
    """Return a row with its numbers as a page shows them: six digits."""
    return [float(f"{value:.6g}") if isinstance(value, float) else value for value in row]


def json_text(value: object) -> str:
    """Return a value as JSON, without what a script element or line of JavaScript cannot contain.
    A number that JSON cannot contain is null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        plain = _finite(value)
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value


class Folder:
    """A folder that is new, empty, or has an earlier report, which is replaced when the block of
    this context ends: until then, and if the block fails, the folder stays as it was."""

    def __init__(self, path: Path, language: str = "en") -> None:
        """Raises BadInput for a folder with other files, or where nothing can be written, and for
        an unknown language."""
        if language not in LANGUAGES:
            raise BadInput(f"--lang: expected one of {', '.join(LANGUAGES)}, got {language!r}")
        self.path = path
        self._language = language
        self._before = _files_of(path)
        check_writable(path)  # before minutes of work
        self._written: set[str] = set()
        self._assets: set[str] = set()
        self._fresh: Path | None = None  # where the files are until all of them are written
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._open:
            if kind is None and self._fresh is not None:
                with file_errors(self.path, "written"):
                    self._replace(self._fresh)

    def write(self, page: Page) -> None:
        """Write a page, its data, and its tables."""
        self._add_assets((*_SHARED, *_LIBRARIES, f"{page.kind}.js"))
        data = json_text(page.data)
        self._put(f"{page.path}.json", data)
        self._put(f"{page.path}.data.js", f"opmeter.receive({data})\n")
        self._put(f"{page.path}.html", self._html(page))
        for path, table in page.tables.items():
            rows = ([_cell(one) for one in row] for row in table.rows)
            self._put(f"{path}.csv", table_bytes(table.columns, rows))

    def write_data(self, path: str, value: object) -> None:
        """Write a data file, which a page loads on demand as `{path}.data.js`."""
        self._put(f"{path}.data.js", f"opmeter.receive({json_text(value)})\n")

    def _replace(self, fresh: Path) -> None:
        """Move the files into place, and remove those of the earlier report that are no more."""
        refuse_links(self.path)  # again: they may be newer than the first check
        if self.path.exists():  # a killed command leaves a folder that the next one replaces
            self._mark(self.path, self._before | self._written)
        self._mark(fresh, self._written)
        move_files(fresh, self.path)
        for name in self._before - self._written:
            (self.path / name).unlink(missing_ok=True)

    def _mark(self, folder: Path, names: Iterable[str]) -> None:
        marker = json.dumps({"opmeter": __version__, "files": sorted(names)}, indent=1)
        write_whole(folder / _MARKER, marker.encode())

    def _html(self, page: Page) -> str:
        root = "../" * page.path.count("/")
        stem = page.path.rpartition("/")[2]
        scripts = (*_LIBRARIES, "labels.js", "report.js", f"{page.kind}.js")
        texts = {
            "language": self._language,
            "title": whole_in_one_line(page.title),
            "root": root,
            "up": _relative(f"{page.up}.html", page.path) if page.up else "",
            "stem": stem,
            "tables": " ".join(_relative(f"{path}.csv", page.path) for path in page.tables),
            "reload": str(page.reload_s) if page.reload_s else "",
            "version": __version__,
        }
        sources = [*(f"{root}assets/{name}" for name in scripts), f"{stem}.data.js"]
        tags = "\n".join(f'<script src="{escape(source)}"></script>' for source in sources)
        filled = {name: escape(text) for name, text in texts.items()} | {"scripts": tags}
        return _PLACE.sub(lambda match: filled[match[1]], _asset("page.html").decode())

    def _add_assets(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._assets:
                self._assets.add(name)
                self._put(f"assets/{name}", _asset(name))

    def _put(self, path: str, content: str | bytes) -> None:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        with file_errors(self.path / path, "written"):
            if self._fresh is None:
                self._fresh = self._open.enter_context(fresh_folder(self.path, "report"))
            target = self._fresh / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)  # not synced to disk: a report can be made again
        self._written.add(path)


def _relative(path: str, of_page: str) -> str:
    return posixpath.relpath(path, posixpath.dirname(of_page) or ".")


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value) if isfinite(value) else ""
    text = str(value)
    # What would be a formula to a spreadsheet, since messages and names come from elsewhere.
    return f"'{text}" if text.startswith(_FORMULAS) and not _NUMBER.fullmatch(text) else text


def _files_of(path: Path) -> set[str]:
    """Return the files of the report in a folder. Raises BadInput for other content."""
    if not path.exists():
        return set()
    if path.is_dir() and all(is_temporary(one) for one in path.iterdir()):
        return set()
    expected = f"{path}: expected a new or empty folder, or one with an earlier report"
    try:
        listed = json.loads(read_small_file(path / _MARKER, MOST_TABLE_BYTES))["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(expected) from error
    refuse_links(path)
    is_list = isinstance(listed, list) and all(map(_is_inside, listed))
    if not is_list or any((path / name).is_dir() for name in listed):
        raise BadInput(f"{path / _MARKER}: expected a list of files, got something else")
    return set(listed)


def _is_inside(name: object) -> bool:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        return False
    return not name.startswith("/") and ".." not in name.split("/")


@cache
def _asset(name: str) -> bytes:
    return (files("collector.report") / "assets" / name).read_bytes()
