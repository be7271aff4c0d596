"""Import what the product imports, then run commands of it, each in a fork of this process: for an
environment in which every start takes seconds.

Reads JSON from the standard input (`names` of modules, and the words of `commands`), and writes
JSON: what `imported.py` reports, and the exit code, output and errors of each command.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from imported import found_by_import


def main() -> None:
    given = json.load(sys.stdin)
    found = found_by_import(given["names"])
    done = [_outcome(words) for words in given["commands"]]
    json.dump({"imports": found, "commands": done}, sys.stdout)


def _outcome(words: Sequence[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = os.fork()
        if not process:
            try:
                _run(words, out, err)
            finally:
                os._exit(99)
        _, status = os.waitpid(process, 0)
        return os.waitstatus_to_exitcode(status), out.read_text(), err.read_text()


def _run(words: Sequence[str], out: Path, err: Path) -> None:
    from jobs.cli import main as run_command

    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["opmeter", *words]
    run_command()


if __name__ == "__main__":
    main()
