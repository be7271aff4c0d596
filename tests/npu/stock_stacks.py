"""Record what the complete serving stacks (vllm_ascend with its torch and torch_npu) call for the
fixture rows of the catalogue: `python -m tests.npu.stock_stacks [RELEASE...]`.

    stock_calls/{release}_served.txt      of the kernels that CANN and vLLM-Ascend both have
    stock_calls/{release}_otherwise.txt   of every other row that is refused, or whose calls are
                                          not those of torch_npu 2.13.0 (`calls/`)

The wheels are unchanged; a release's own headers and library of custom operators decide which
function is called. `tests/stacks` compares the files with another recording; read the difference
before it is committed. `python -m tests.npu.stock_stacks install` makes the environments of
`stock_extension`, and those of the releases that `opmeter model record` knows.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.engine.environments import (
    RELEASES,
    STACKS,
    install_serving,
    install_stack,
)
from collector.ops.registry import find_operator
from tests.npu.fakecann.build import build_fake_cann
from tests.npu.golden import golden_path, golden_text
from tests.npu.replay_rows import STOCK_SITE
from tests.npu.replayed import Replayed, kernels_with_rows, replay
from tests.npu.stock_extension import FOLDER, run_inside

_INSIDE, _INSTALL = "--inside", "install"
# Text that differs between runs or machines: numbers that torch_npu reads from memory that it has
# freed (`restore_shape` of MoeTokenUnpermute, until 2.10), the last output of a process, and the
# folder of a stack.
_ADDRESS = re.compile(r"ints\(\d{12,}\)")
_SITE = re.compile(r"/\S+?/site/(?=vllm_ascend/)")
_LAST_WORDS = re.compile(r"(error: the process ended, status -?\d+).*", re.S)


@dataclass(frozen=True, slots=True)
class Recording:
    """The results of all rows: the blocks of the two files."""

    rows: int
    served: tuple[str, ...]
    otherwise: tuple[str, ...]


def main(arguments: list[str]) -> int:
    """Install the stacks, or record the releases named, or all."""
    if arguments[:1] == [_INSIDE]:
        return _record(Path(arguments[1]), Path(arguments[2]))
    if arguments == [_INSTALL]:
        for release in STACKS:
            print(install_stack(release))
        for name in RELEASES:
            print(install_serving(name).python)
        return 0
    for release in arguments or STACKS:
        install_stack(release)
        reported = recorded(release)
        served_path(release).write_text("\n".join(reported.served))
        otherwise_path(release).write_text("\n".join(reported.otherwise))
        print(f"{release}: {reported.rows} rows, {len(reported.otherwise)} otherwise")
    return 0


def recorded(release: str) -> Recording:
    """Return what an installed stack calls now."""
    reported = json.loads(run_inside("tests.npu.stock_stacks", release))
    return Recording(reported["rows"], tuple(reported["served"]), tuple(reported["otherwise"]))


def served_path(release: str) -> Path:
    return FOLDER / f"{release}_served.txt"


def otherwise_path(release: str) -> Path:
    return FOLDER / f"{release}_otherwise.txt"


def _record(site: Path, out: Path) -> int:
    """Run by the release's own Python: replay every row, and write the relevant results."""
    os.environ[STOCK_SITE] = str(site)
    found = replay(build_fake_cann(site), kernels_with_rows())
    rows = sum(map(len, found.values()))
    served = [kernel for kernel in found if _is_served(kernel)]
    blocks = [_of_library(_text(k, row), row) for k in served for row in found.pop(k)]
    out.write_text(json.dumps({"rows": rows, "served": blocks, "otherwise": _otherwise(found)}))
    return 0


def _is_served(kernel: str) -> bool:
    op = find_operator(kernel)
    return op is not None and bool(op.npu.served)


def _text(kernel: str, row: Replayed) -> str:
    text = _ADDRESS.sub("ints(?)", _SITE.sub("", golden_text(kernel, [row])))
    return _LAST_WORDS.sub(r"\1\n", text)


def _of_library(block: str, row: Replayed) -> str:
    return f"{block}  of {row.library}\n" if row.library else block


def _otherwise(found: Mapping[str, Sequence[Replayed]]) -> list[str]:
    """Return the rows, with their calls, that differ from those of the recording tier."""
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
