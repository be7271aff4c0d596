"""The command blocks of the documentation: finding them, their requirements, and running them.

A fenced block of `sh` or `python` in a tutorial, a how-to or a skill of an agent is a block. A
comment above it declares its needs: `<!-- needs: npu -->`; without one it needs only opmeter and
torch (`laptop`). The blocks of a page run in order in one shell, which ends at the first command
that fails.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from jobs.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS, AGENTS = ROOT / "docs", ROOT / ".agents"
FIRST_HOUR = "how-to/first-hour-on-an-npu.md"  # tests/stacks runs it, in an image's environment
NEEDS = ("laptop", "s3", "npu", "events", "cluster", "repository", "package", "stack", "hardware")
# Without a shutdown of the interpreter, in which pyarrow's threads abort once in many runs.
_END = "import os, sys; sys.stdout.flush(); os._exit(0)"
_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- needs: (?P<needs>[^\n]*?) -->\s*?\n\s*?(?P=indent))?"
    r"```(?P<language>sh|python)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of a page: `needs` is one of NEEDS, `of` the words after it, such as a package, or
    the release of a serving stack."""

    page: str
    line: int
    language: str
    text: str
    needs: str
    of: str = ""

    @property
    def place(self) -> str:
        return f"{_path(self.page).relative_to(ROOT)}:{self.line}"


def pages() -> list[str]:
    """Return the pages whose blocks run, by their paths below docs/ or .agents/."""
    found = [path for folder in ("tutorials", "how-to") for path in (DOCS / folder).glob("*.md")]
    skills = AGENTS.glob("skills/*/SKILL.md")
    return sorted(
        [path.relative_to(DOCS).as_posix() for path in found]
        + [path.relative_to(AGENTS).as_posix() for path in skills]
    )


def translated() -> list[str]:
    """Return the pages with blocks that exist in Chinese, too."""
    return [page for page in pages() if (DOCS / "zh" / page).exists()]


def _path(page: str) -> Path:
    return (AGENTS if page.startswith("skills/") else DOCS) / page


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = _path(page).read_text("utf-8")
    found = []
    for match in _FENCE.finditer(text):
        needs, _, of = (match["needs"] or "laptop").replace(":", " ").partition(" ")
        line = text.count("\n", 0, match.start("language")) + 1
        indent = match["indent"]
        body = re.sub(f"^{indent}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(page, line, match["language"], body, needs, of.strip()))
    return found


def run(blocks: list[Block], folder: Path, environment: Mapping[str, str], limit_s: float) -> None:
    """Run blocks in one shell in a folder. Raises AssertionError with the block that failed and the
    end of its output."""
    script = ["set -euo pipefail"]
    for at, block in enumerate(blocks):
        script.append(f"echo '::block {at}' >&2")
        if block.language == "python":
            script += ["python - <<'END_OF_PYTHON'", block.text.rstrip(), _END, "END_OF_PYTHON"]
        else:
            script.append(block.text.rstrip())
    with (folder / ".output").open("w+b") as output:
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
        )
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if done.returncode:
        before, _, last = printed.rpartition("::block ")
        number, _, words = last.partition("\n")
        failed, end = blocks[int(number)], (words or before)[-3000:]
        raise AssertionError(f"{failed.place}: exit {done.returncode}\n{failed.text}\n{end}")


def environment(folder: Path, base: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """Return the environment of blocks: `base` with this Python as `python`, and the opmeter whose
    sources are below `root`."""
    tools = folder / ".bin"
    tools.mkdir()
    for name, command in (("python", ""), ("opmeter", "-m jobs.cli")):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        tool.chmod(0o755)
    python_path = os.pathsep.join(filter(None, (base.get("PYTHONPATH"), str(root))))
    path = f"{tools}{os.pathsep}{base['PATH']}"
    return {**base, "PATH": path, "PYTHONPATH": python_path, "COLUMNS": "100"}


def copy_repository(folder: Path) -> None:
    """Copy what belongs to the repository into a folder, as a new repository."""
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)


def unknown_words(block: Block) -> Iterator[str]:
    """Return the unknown words of the opmeter commands of a block: a command or an option."""
    if block.language != "sh":
        return
    whole = _commands()
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in re.split(r"&&|\|\||[|;]", line):
            words = _words(command)
            if "--" in words:  # of kubectl exec
                words = words[words.index("--") + 1 :]
            if words[:1] == ["opmeter"]:
                yield from _unknown(words[1:], whole)


@cache
def _commands() -> Any:
    return typer.main.get_command(app)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # an open quote: part of a longer text
        return []


def _unknown(words: list[str], command: Any, known: Collection[str] = ()) -> Iterator[str]:
    options = {*known, "--help", *(name for one in command.params for name in _names(one))}
    subcommands: Mapping[str, Any] = getattr(command, "commands", {})
    for at, word in enumerate(words):
        if word in subcommands:
            yield from _unknown(words[at + 1 :], subcommands[word], options)
            return
        if word.startswith("-") and re.match("--?[a-zA-Z]", word):
            if word.partition("=")[0] not in options:
                yield f"{command.name}: {word}"
        elif at == 0 and subcommands and not command.params:
            yield word


def _names(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]
