"""The environments in which the product is supported, and a table of what holds in each:
`python -m tests.stacks.environments` runs the tests of every cell and prints the table of
docs/evaluation/environments.md.

`pip check` of arm64 is evaluated from the metadata of the wheels; `arm64` installs and runs them.
"""

import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from collector.engine.environments import RELEASES
from collector.engine.wheel import cache
from tests.cluster.testbed.images import COLLECTORS
from tests.stacks.distributions import Installed, in_wheels, read, written
from tests.stacks.product_environment import ROOT, clean_environ, digest, installing

ARM64 = "aarch64"
# The Python of each release's image.
PYTHONS = {name: COLLECTORS[known.vllm_ascend].python for name, known in RELEASES.items()}
_FILES = ("controller", "build")  # what is locked, without torch: `controller` has `collector`
_COLUMNS = {
    "resolves": "test_environment_resolves",
    "pip check": "test_environment_has_no_new_conflict",
    "imports": "imports_everything",
    "chain": "the_chain_runs",
}
_PIN = re.compile(r"(?m)^(\S+)==(\S+) \\\n((?: {4}--hash=\S+(?: \\)?\n)+)")


@dataclass(frozen=True, slots=True)
class Pin:
    """A locked package: its version, and how many wheels of it are locked."""

    version: str
    wheels: int


def pins(name: str) -> Mapping[str, Pin]:
    """Return the packages of a locked file of requirements."""
    text = requirements(name).read_text()
    return {
        package: Pin(version, hashes.count("--hash"))
        for package, version, hashes in _PIN.findall(text)
    }


def requirements(name: str) -> Path:
    return ROOT / "images" / f"requirements-{name}.txt"


def locked_for_arm64(python: str) -> Mapping[str, Installed]:
    """Return the distributions that an image installs on arm64 for a version of Python.

    pip downloads their wheels (140 MB) with the hashes that are locked, once for each lock; it
    fails where one has no wheel. Their metadata is kept."""
    files = [requirements(name) for name in _FILES]
    chosen = words_for_arm64(python)
    key = digest(*(file.read_bytes() for file in files), repr(chosen).encode())
    folder = cache() / f"product-wheels-{ARM64}-{python}-{key}"
    with installing(folder, key) as is_absent:
        if is_absent:
            with tempfile.TemporaryDirectory() as wheels:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
                command += ["--require-hashes", "--only-binary", ":all:", "--dest", wheels]
                command += [
                    *chosen,
                    *(word for file in files for word in ("--requirement", str(file))),
                ]
                subprocess.run(command, check=True, env=clean_environ(), stdout=sys.stderr)
                (folder / "metadata.json").write_text(written(in_wheels(Path(wheels))))
    return read((folder / "metadata.json").read_text())


def words_for_arm64(python: str) -> list[str]:
    """Return the options of pip that select wheels for a version of Python on arm64."""
    tags = runpy.run_path(str(ROOT / "images" / "lock"))["MANYLINUX"]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{ARM64}")]
    return ["--python-version", python, *platforms]


def main() -> int:
    """Run the tests of the cells, and print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        files = [
            f"tests/stacks/test_stacks_{name}.py" for name in ("environments", "chain", "arm64")
        ]
        command = [sys.executable, "-m", "pytest", "-q", *files, f"--junitxml={report}"]
        status = subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode
        outcomes = dict(_outcomes(report))
    print(f"|release|Python of its image|architecture|{'|'.join(_COLUMNS)}|")
    print("|---" * (3 + len(_COLUMNS)) + "|")
    for release in RELEASES:
        for machine in ("x86_64", ARM64):
            cells = [_cell(outcomes, test, release, machine) for test in _COLUMNS.values()]
            print(f"|{release}|{PYTHONS[release]}|{machine}|{'|'.join(cells)}|")
    return status


def _outcomes(report: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        yield case.attrib["name"], bad[0] if bad else "passes"


def _cell(outcomes: Mapping[str, str], test: str, release: str, machine: str) -> str:
    found = {
        outcome
        for name, outcome in outcomes.items()
        if test in name and release in name and (machine == ARM64) == (ARM64 in name)
    }
    return ", ".join(sorted(found)) or "not run"


if __name__ == "__main__":
    sys.exit(main())
