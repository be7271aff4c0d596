"""Pictures of what commands print: `python -m tools pictures [FOLDER]`.

It runs the quickstart in an empty folder (or shows the database in FOLDER), and writes an SVG for
each command to docs/pictures/. Run it on a quiet machine when the output of one of them changes.
"""

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from jobs.cli.terminal import wrapped

_ROOT = Path(__file__).parents[1]
_PICTURES = _ROOT / "docs" / "pictures"
_WIDTH = 100
_COMMANDS = {
    "quickstart": "run quickstart",
    "quality": "db quality",
    "coverage": "coverage quickstart",
}
# rich's own frame, without the font that it fetches from another server.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def make(folders: Sequence[str]) -> int:
    """Write all pictures: of the database in the folder, if there is one."""
    _PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(folders[0] if folders else scratch)
        for name, words in _COMMANDS.items():
            printed = _output(words.split(), folder)
            (_PICTURES / f"{name}.svg").write_text(picture(f"opmeter {words}", printed), "utf-8")
    return 0


def _output(words: list[str], folder: Path) -> str:
    command = [sys.executable, "-m", "jobs.cli", *words]
    env = {"PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    # Progress is for interactive use; the path of the folder is irrelevant to a reader.
    kept = (line for line in done.stdout.splitlines() if not line.startswith("measured "))
    return (
        "\n".join(kept)
        .replace(str(folder.resolve()), "/home/you")
        .replace(str(folder), "/home/you")
    )


def picture(command: str, printed: str) -> str:
    """Return an SVG of a terminal in which a command printed a text."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text(f"$ {command}", style="bold green"))
    for line in printed.split("\n"):
        for at, part in enumerate(wrapped(line, _WIDTH)):
            text = Text(part)
            if at == 0 and (label := re.match(" *[a-z]+ +", part)):
                text.stylize("bold cyan", 0, label.end())
            console.print(text)
    return console.export_svg(title="opmeter", code_format=_SVG, unique_id="opmeter")
