"""Reports: self-contained HTML pages about databases, campaigns and models, and comparisons.

A page is a value, and a folder of pages is written by one writer:

1. A pure function computes the page's data: plain dicts, lists, numbers and texts. It returns a
   `Page` of `pages.py`: the path in the folder, the kind, the title, the data, and the tables that
   are written as CSV next to it.
2. `assets/{kind}.js` draws pages of this kind: it calls `opmeter.view((data, main) => ...)` once,
   and builds the page with the functions of `assets/report.js`: `opmeter.el` (elements; data only
   ever becomes text), `opmeter.section`, `opmeter.facts`, `opmeter.table`, `opmeter.chart`
   (Observable Plot with the report's theme), `opmeter.load` (a data file on demand), and the
   formats `opmeter.us`, `opmeter.percent`, `opmeter.count`. Labels are English texts given to
   `opmeter.t`; `assets/labels.js` has them in Chinese.
3. `Folder.write(page)` of `pages.py` writes `{path}.html`, `{path}.data.js` and `{path}.json` with
   the data, and a CSV for each table. `Folder.write_data` writes a further data file, which a page
   loads when a user asks for it. A page needs no server: scripts are the only files that a browser
   loads from `file://`.
4. A command of `jobs/cli/report.py` collects the input and writes the pages.

The Content-Security-Policy of a page allows scripts of its own folder only. Nothing that comes from
data is ever parsed as HTML.
"""
