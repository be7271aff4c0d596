"""Lines and tables on a terminal: they wrap at blanks, and never inside a number."""

import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from jobs.cli.terminal import wrapped

LINE = "coverage    129 of 1,130 cases, 98.9 % of the rows, s3://bucket/prefix/of/many/letters"


@pytest.mark.fast
def test_a_long_line_wraps_below_its_label():
    for width in range(50, 120):
        parts = wrapped(LINE, width)
        assert " ".join(" ".join(parts).split()) == " ".join(LINE.split())
        assert max(map(len, parts)) <= width and all(p.startswith(" " * 12) for p in parts[1:])
    assert wrapped(LINE, 200) == [LINE]
    for label in ("unsupported ", "interrupted at "):  # a label that fills its column, a sentence
        (_, second) = wrapped(f"{label}MemSet: 1 case, 26 rows, 1.76 ms of computing", 40)
        assert second.startswith(" " * 12) == (label == "unsupported "), second


def test_tables_fit_the_terminal_and_break_no_number():
    words = ("model", "show", "qwen3-32b", "--layout", "tp=4")
    piped = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words], capture_output=True, text=True, check=True
    )
    cells = [line.split("\t")[3] for line in piped.stdout.splitlines()[1:]]
    shapes = {word for cell in cells for word in re.split("[; ]", cell)}
    for columns in (80, 120):
        shown = printed(columns, *words)
        assert max(map(len, shown.splitlines())) <= columns
        found = {w.strip(";") for w in shown.replace("│", " ").split()}
        assert {shape for shape in shapes if shape} <= found


def printed(columns: int, *words: str) -> str:
    """The output of the command on a terminal of this width."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    command = [sys.executable, "-m", "jobs.cli", *words]
    env = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        text = b""
        while part := read(ours):
            text += part
        assert process.wait() == 0
    os.close(ours)
    return re.sub(r"\r|\x1b\[[0-9;]*m", "", text.decode())  # without bold text


def read(end: int) -> bytes:
    try:
        return os.read(end, 1 << 16)
    except OSError:  # Linux reports the end of a terminal this way
        return b""
