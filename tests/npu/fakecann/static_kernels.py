"""Kernels built for one shape: the fake op_compiler, and what its packages install.

    op_compiler -p DUMPED -v SOC -o FOLDER ...

It writes FOLDER/static_kernel_{pid}.run, which installs itself below ASCEND_OPP_PATH, as that of
CANN. A package has the launches whose kernels it replaces, as the log of launches has them."""

import os
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from collector.engine.calls import read_calls

DUMP, RESELECT = "CUSTOM DUMP(1)", "CUSTOM RESELECT(0)"
_OPERATORS = "operators.txt"
_PACKAGE = """\
#!/bin/sh
set -e
to=${{ASCEND_OPP_PATH:?}}/static_kernel/ai_core/{name}
mkdir -p "$to"
printf '#!/bin/sh\\nrm -r "%s"\\n' "$to" > "$to/uninstall.sh"
chmod 750 "$to/uninstall.sh"
printf '%s\\n' {operators} > "$to/{file}"
"""


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit status."""
    parser = ArgumentParser("op_compiler")
    for option in ("-p", "-v", "-l", "-j", "-o"):
        parser.add_argument(option)
    options, _ = parser.parse_known_args(arguments)
    operators = _dumped(Path(os.environ["FAKE_CANN_LOG"]))
    if not any(Path(options.p).glob("*.json")) or not operators:
        print("[ERROR] no operators were dumped", file=sys.stderr)
        return 1
    name = f"static_kernel_{os.getpid()}"
    words = " ".join(map(shlex.quote, operators))
    package = Path(options.o, f"{name}.run")
    package.write_text(_PACKAGE.format(name=name, operators=words, file=_OPERATORS))
    package.chmod(0o750)
    return 0


def installed_operators() -> frozenset[str]:
    """Return the launches that have a static kernel in the library of the environment."""
    packages = Path(os.environ.get("ASCEND_OPP_PATH", ""), "static_kernel", "ai_core")
    files = packages.glob(f"*/{_OPERATORS}")
    return frozenset(line for file in files for line in file.read_text().splitlines())


def _dumped(log: Path) -> list[str]:
    """Return the launches of the last dump."""
    found: list[str] = []
    for call in read_calls(log):
        if call.text == DUMP:
            found = []
        elif call.kind != "CUSTOM":
            found.append(call.text)
    return list(dict.fromkeys(found))
