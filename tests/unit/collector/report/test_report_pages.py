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
    folder = Folder(tmp_path / "report", "zh")
    table = Table(("name", "us"), [(_HOSTILE, 1.5), ("b", float("nan")), ("c", None)])
    page = Page("kernels/a", "kernel", _HOSTILE, {"x": _HOSTILE}, {"kernels/a": table}, "index")
    folder.write(page)
    folder.finish()

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
    Folder(tmp_path).write(Page("index", "database", "a\u202eb\x1b[1m\n", {}, {"index": table}))
    rows = (tmp_path / "index.csv").read_text().splitlines()[1:]
    assert rows == ["'=1+1", "'+cmd", "'@x", "'-2+3", "'\t=1", "-1.5e-3", "-", '"""4,4"""', "-2"]
    assert "<title>a\\u202eb\\x1b[1m</title>" in (tmp_path / "index.html").read_text()


def test_page_of_changing_data_reloads_itself(tmp_path):
    folder = Folder(tmp_path)
    folder.write(Page("index", "database", "a", {}, reload_s=30))
    assert 'data-reload="30"' in (tmp_path / "index.html").read_text()


def test_second_report_replaces_the_first(tmp_path):
    for names in (("index", "old"), ("index",)):
        folder = Folder(tmp_path)
        for name in names:
            folder.write(Page(name, "database", name, {}))
        folder.finish()
    assert (tmp_path / "index.html").exists() and not (tmp_path / "old.html").exists()


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
    report = Folder(folder)
    folder.mkdir()
    (folder / "index.html.new").symlink_to(theirs / "thesis.txt")  # after the check
    report.write(Page("index", "database", "a", {}))
    assert [file.read_text() for file in theirs.iterdir()] == ["mine"]
    assert (folder / "index.html").is_file() and not (folder / "index.html").is_symlink()


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
