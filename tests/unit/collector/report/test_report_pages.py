"""A folder of pages: written files, refusals, and that data stay text."""

import json
import re
import shutil

import pytest

from collector.codec.errors import BadInput
from collector.report.pages import Folder, Page, Table, file_stem, json_text

pytestmark = pytest.mark.fast

_HOSTILE = "</script><script>alert(1)</script>\"'&\u2028{{scripts}}"


def test_page_has_its_data_tables_and_assets(tmp_path):
    table = Table(("name", "us"), [(_HOSTILE, 1.5), ("b", float("nan")), ("c", None)])
    page = Page("kernels/a", "kernel", _HOSTILE, {"x": _HOSTILE}, {"kernels/a": table}, "index")
    with Folder(tmp_path / "report", "zh") as folder:
        folder.write(page)

    html = (tmp_path / "report/kernels/a.html").read_text()
    assert 'lang="zh"' in html and 'data-up="../index.html"' in html
    assert 'data-tables="a.csv"' in html
    assert "alert(1)" in html and "<script>" not in html
    for source in re.findall(r'(?:src|href)="(?!data:)([^"]+)"', html):
        assert (tmp_path / "report/kernels" / source).is_file(), source
    assert "script-src 'self';" in html and "default-src 'none'" in html
    data = (tmp_path / "report/kernels/a.data.js").read_text()
    assert "<" not in data and "\u2028" not in data
    assert json.loads((tmp_path / "report/kernels/a.json").read_text()) == {"x": _HOSTILE}
    assert (tmp_path / "report/kernels/a.csv").read_text().splitlines()[-2:] == ["b,", "c,"]


def test_names_from_elsewhere_are_no_formulas_and_turn_no_text(tmp_path):
    cells = ("=1+1", "+cmd", "@x", "-2+3", "\t=1", "-1.5e-3", "-", '"4,4"', -2)
    table = Table(("a",), [(cell,) for cell in cells])
    with Folder(tmp_path) as folder:
        folder.write(Page("index", "database", "a\u202eb\x1b[1m\n", {}, {"index": table}))
    rows = (tmp_path / "index.csv").read_text().splitlines()[1:]
    assert rows == ["'=1+1", "'+cmd", "'@x", "'-2+3", "'\t=1", "-1.5e-3", "-", '"""4,4"""', "-2"]
    assert "<title>a\\u202eb\\x1b[1m</title>" in (tmp_path / "index.html").read_text()


def test_page_of_changing_data_reloads_itself(tmp_path):
    with Folder(tmp_path) as folder:
        folder.write(Page("index", "database", "a", {}, reload_s=30))
    assert 'data-reload="30"' in (tmp_path / "index.html").read_text()


def test_second_report_replaces_the_first(tmp_path):
    for names in (("index", "old"), ("index",)):
        with Folder(tmp_path) as folder:
            for name in names:
                folder.write(Page(name, "database", name, {}))
    assert (tmp_path / "index.html").exists() and not (tmp_path / "old.html").exists()


@pytest.mark.parametrize("before", ["no folder", "an empty folder", "an earlier report"])
def test_report_that_fails_changes_nothing_and_leaves_nothing(tmp_path, before):
    folder = tmp_path / "report"
    if before == "an empty folder":
        folder.mkdir()
    if before == "an earlier report":
        with Folder(folder) as report:
            report.write(Page("index", "database", "earlier", {}))
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuntimeError), Folder(folder) as report:
        report.write(Page("index", "database", "later", {}))
        report.write(Page("more", "database", "later", {}))
        raise RuntimeError
    assert sorted(tmp_path.rglob("*")) == there
    assert before != "an earlier report" or "earlier" in (folder / "index.html").read_text()


def test_what_a_killed_report_left_is_removed_and_a_running_one_stays(tmp_path):
    killed = tmp_path / ".opmeter-report-killed"
    (killed / "new").mkdir(parents=True)
    (killed / "new/index.html").write_text("half")
    (killed / "lock").touch()
    with Folder(tmp_path) as running:
        running.write(Page("index", "database", "a", {}))
        with Folder(tmp_path) as other:
            other.write(Page("index", "database", "b", {}))
        assert not killed.exists()
    assert "<title>a</title>" in (tmp_path / "index.html").read_text()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".opmeter-report-")]


def test_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput):
        Folder(tmp_path)
    with pytest.raises(BadInput):
        Folder(tmp_path / "thesis.txt")
    (tmp_path / ".opmeter-report.json").write_text('{"files": ["../thesis.txt"]}')
    with pytest.raises(BadInput):
        Folder(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_links_in_a_prepared_folder_are_refused_and_never_followed(tmp_path):
    theirs, folder = tmp_path / "theirs", tmp_path / "report"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("mine")
    for name, target in (("assets", theirs), ("index.html.new", theirs / "thesis.txt")):
        folder.mkdir()
        (folder / ".opmeter-report.json").write_text('{"files": ["assets/thesis.txt"]}')
        (folder / name).symlink_to(target)
        with pytest.raises(BadInput) as error:
            Folder(folder)
        assert error.value.path == folder / name
        shutil.rmtree(folder)
    for name, target in (("assets", theirs), ("index.html", theirs / "thesis.txt")):
        with pytest.raises(BadInput) as error, Folder(folder) as report:
            folder.mkdir()
            (folder / name).symlink_to(target)  # after the check
            report.write(Page("index", "database", "a", {}))
        assert error.value.path == folder / name
        shutil.rmtree(folder)
    assert [file.read_text() for file in theirs.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["", ".", "kernels", "a\0b", "x" * 5000, "../a", "/a"])
def test_list_of_files_with_another_name_is_refused_before_a_page_is_written(tmp_path, name):
    (tmp_path / "kernels").mkdir()
    (tmp_path / ".opmeter-report.json").write_text(json.dumps({"files": [name]}))
    with pytest.raises(BadInput):
        Folder(tmp_path)


def test_unknown_language_is_refused(tmp_path):
    with pytest.raises(BadInput, match="--lang"):
        Folder(tmp_path, "de")


def test_names_from_data_become_distinct_plain_file_names():
    assert file_stem("MatMulV2") == "MatMulV2"
    names = ["../a", "a/b", "a b", "", ".", "..", "x" * 300, "名", "CON\0", "a.", _HOSTILE]
    stems = [file_stem(name) for name in names]
    assert len(set(stems)) == len(stems)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", stem) for stem in stems), stems


def test_json_has_no_invalid_numbers():
    found = json.loads(json_text({"a": [float("inf"), 1.0], "b": float("nan"), "c": (1, "<")}))
    assert found == {"a": [None, 1.0], "b": None, "c": [1, "<"]}
