"""`python -m tests.npu.stock_stacks [RELEASE...]`: writes anew what the serving stacks, whole, call
for the fixture rows of the catalogue: vllm_ascend, and the torch and torch_npu that it wants.

    stock_calls/{release}_served.txt      of the kernels that CANN and vLLM-Ascend both have
    stock_calls/{release}_otherwise.txt   of every other row that is refused, or whose calls are
                                          not those of torch_npu 2.13.0 (`calls/`)

The wheels are as they are; a release's own headers and library of custom operators decide which
function is called. Environments as in `stock_extension`: by hand. Read the difference before it is
committed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from collector.ops.registry import find
from tests.npu.fakecann.build import build
from tests.npu.golden import golden_path, golden_text
from tests.npu.replay_rows import STOCK_SITE
from tests.npu.replayed import Replayed, kernels_with_rows, replay
from tests.npu.stock_extension import FOLDER, STACKS, installed

_ROOT = Path(__file__).parents[2]
_INSIDE = "--inside"
# What no two runs have in common: numbers that torch_npu reads out of memory that it has given
# back (`restore_shape` of MoeTokenUnpermute, until 2.10), and what a process said before its end.
_ADDRESS = re.compile(r"ints\(\d{12,}\)")
_LAST_WORDS = re.compile(r"(error: the process ended, status -?\d+).*", re.S)


def main(arguments: list[str]) -> int:
    """Record the releases named, or all."""
    if arguments[:1] == [_INSIDE]:
        return _record(arguments[1], Path(arguments[2]))
    for release in arguments or STACKS:
        folder = installed(release)
        python = folder / "python" / "bin" / "python"
        inside = [python, "-m", "tests.npu.stock_stacks", _INSIDE, release, folder / "site"]
        subprocess.run(inside, cwd=_ROOT, check=True)
    return 0


def served_path(release: str) -> Path:
    return FOLDER / f"{release}_served.txt"


def otherwise_path(release: str) -> Path:
    return FOLDER / f"{release}_otherwise.txt"


def _record(release: str, site: Path) -> int:
    """Run by the release's own Python: replay every row, and write down what is of interest."""
    os.environ[STOCK_SITE] = str(site)
    found = replay(build(site), kernels_with_rows())
    served = [kernel for kernel in found if _is_served(kernel)]
    blocks = [_of_library(_text(k, row), row) for k in served for row in found.pop(k)]
    served_path(release).write_text("\n".join(blocks))
    otherwise = _otherwise(found)
    otherwise_path(release).write_text("\n".join(otherwise))
    print(f"{release}: {sum(map(len, found.values()))} rows, {len(otherwise)} otherwise")
    return 0


def _is_served(kernel: str) -> bool:
    op = find(kernel)
    return op is not None and bool(op.npu.served)


def _text(kernel: str, row: Replayed) -> str:
    text = _ADDRESS.sub("ints(?)", golden_text(kernel, [row]))
    return _LAST_WORDS.sub(r"\1\n", text)


def _of_library(block: str, row: Replayed) -> str:
    return f"{block}  of {row.library}\n" if row.library else block


def _otherwise(found: Mapping[str, Sequence[Replayed]]) -> list[str]:
    """The rows, with their calls, that are not as the recording tier holds them."""
    blocks = []
    for kernel, rows in found.items():
        path = golden_path(kernel)
        held = path.read_text().split("\n\n") if path.exists() else []
        known = {block.strip() for block in held}
        texts = [_text(kernel, row) for row in rows]
        blocks += [text for text in texts if text.strip() not in known]
    return blocks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
