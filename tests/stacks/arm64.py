"""The product of a release's image on arm64, in an emulated Debian.

    product = install_on_arm64("vllm-ascend-0.18")
    product.run(["opmeter", "db", "log"], folder)     `folder` is /work

The root has Debian's packages as they are unpacked: nothing is configured, which would take
minutes. pip of this machine installs the wheels for arm64 by the commands of the Dockerfile, and a
Python of this machine compiles the modules: both would take ten times as long in the root.

Programs run in namespaces of their own, whose kernel starts those of arm64 by qemu. Nothing is
registered or mounted outside.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.engine.environments import RELEASES
from collector.engine.wheel import cache
from tests.cluster.testbed import machine
from tests.cluster.testbed.images import COLLECTORS
from tests.cluster.testbed.pythons import compiler, python_folder
from tests.stacks.environments import ARM64, PYTHONS, pins, requirements, words_for_arm64
from tests.stacks.product_environment import (
    PLACE,
    ROOT,
    built_wheel,
    clean_environ,
    digest,
    installing,
    link,
    pip_commands,
    run_words,
    site_of,
)

# A command -> Debian's package; mvn and the compiler make the Python that Debian does not have.
_TOOLS = {
    "qemu-aarch64-static": "qemu-user-static",
    "mmdebstrap": "mmdebstrap",
    "mvn": "maven",
    compiler(ARM64): "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
}
_SUITE, OF_DEBIAN = "bookworm", "3.11"  # the suite, and its Python
_PACKAGES = "python3,libstdc++6,ca-certificates"
_PYTHON = Path("/usr/local/python")  # where Debian's is not that of the image
LACKING = {"3.12": ("lzma", "sqlite3")}  # modules that a CPython was published without
_FOLDERS = ("/proc", "/sys", "/dev")  # of this machine
_HANDLERS = "/proc/sys/fs/binfmt_misc"
# Programs of arm64 by the head of their file; as in Debian's binfmt.d/qemu-aarch64.conf.
_HANDLER = (
    r":arm64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{}:OPF"
)
# Before Linux 6.7, handlers are those of the whole machine; F keeps qemu open for other roots.
_OWN_HANDLERS = f"mount -t binfmt_misc none {_HANDLERS} && printf %s {{}} >{_HANDLERS}/register"
_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-euc")
# Modules that the product does not import are half of all.
_NOT_COMPILED = r"/(tests?|idlelib|lib2to3|kubernetes/aio|pygments/(lexers|styles))/"


class NoArm64(Exception):
    """This machine cannot run programs of arm64; the message has the fix."""


@dataclass(frozen=True, slots=True)
class Root:
    """A Debian of arm64 with the Python of an image, and folders of this machine at their place in
    it."""

    folder: Path
    python: str
    mounts: Mapping[str, Path]

    @property
    def interpreter(self) -> str:
        return "/usr/bin/python3" if self.python == OF_DEBIAN else f"{_PYTHON}/bin/python3"

    @property
    def packages(self) -> str:
        """The folder of the packages of an image's Python."""
        if self.python == OF_DEBIAN:
            return f"/usr/local/lib/python{self.python}/dist-packages"
        return f"{_PYTHON}/lib/python{self.python}/site-packages"

    def run(
        self, words: Sequence[str], mounts: Mapping[str, Path], given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the root in /work, with more mounts and an input."""
        every = {**{folder: Path(folder) for folder in _FOLDERS}, **self.mounts, **mounts}
        script = [
            f"{_own_handlers()} 2>/dev/null || true",
            *(
                f"mount --rbind {shlex.quote(str(source))} {shlex.quote(f'{self.folder}{target}')}"
                for target, source in every.items()
            ),
            f'exec unshare --root={shlex.quote(str(self.folder))} --wd=/work "$@"',
        ]
        path = f"{PLACE}/bin:{_PYTHON}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            [*_NAMESPACES, "\n".join(script), "sh", *words],
            env={
                "PATH": path,
                "HOME": "/work",
                "TMPDIR": "/work",
                "OPMETER_LOCKS": "/work/locks",
                "COLUMNS": "200",
                "OPENBLAS_NUM_THREADS": "1",
            },
            input=given,
            capture_output=True,
            text=True,
        )


@dataclass(frozen=True, slots=True)
class Arm64Product:
    """The product in a root: `packages` has those of the image, `folder` the product's."""

    root: Root
    packages: Path
    folder: Path

    def run(
        self, words: Sequence[str], work: Path, given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the root in a folder, which is its /work."""
        mounts = {self.root.packages: self.packages, str(PLACE): self.folder, "/work": work}
        return self.root.run(words, mounts, given)


def install_on_arm64(release: str) -> Arm64Product:
    """Return the product as the image of a release has it on arm64, for this checkout.

    NoArm64 if this machine cannot run it."""
    _require()
    root = _root(PYTHONS[release])
    packages = _packages(root, COLLECTORS[RELEASES[release].vllm_ascend].packages)
    wheel = built_wheel(Path(sys.executable))
    folder = cache() / f"product-{ARM64}-{release}-{digest(str(ROOT).encode())}"
    with installing(folder, f"{packages.name} {wheel.parent.name}") as is_absent:
        if is_absent:
            venv = packages / "product"
            shutil.copytree(venv, folder, copy_function=link, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(site_of(folder) / "bin")  # pip leaves a folder as it is
            (install,) = pip_commands("collector", "dist/")
            _install(install, site_of(folder), (), {f"{PLACE}/dist/*.whl": str(wheel)})
            _compile(root.python, site_of(folder))
            (script,) = site_of(folder).glob("bin/opmeter")
            lines = script.read_text().partition("\n")[2]
            (folder / "bin" / "opmeter").write_text(f"#!{PLACE}/bin/python\n{lines}")
            (folder / "bin" / "opmeter").chmod(0o755)
    return Arm64Product(root, packages / "image", folder)


def _require() -> None:
    missing = {package for tool, package in _TOOLS.items() if shutil.which(tool) is None}
    if missing:
        raise NoArm64(f"not installed: apt-get install {' '.join(sorted(missing))}")
    if os.geteuid():
        raise NoArm64("a Debian for arm64 is unpacked by root only")
    own = subprocess.run([*_NAMESPACES, _own_handlers()], capture_output=True, text=True)
    if own.returncode and not Path(_HANDLERS, "qemu-aarch64").exists():
        raise NoArm64(f"expected Linux 6.7 or {_HANDLERS}/qemu-aarch64: {own.stderr.strip()}")


def _own_handlers() -> str:
    handler = _HANDLER.format(shutil.which("qemu-aarch64-static"))
    return _OWN_HANDLERS.format(shlex.quote(handler))


def _root(python: str) -> Root:
    """Return a Debian with a Python; 100 MB, unpacked once."""
    folder = cache() / f"debian-{ARM64}-{digest(_SUITE.encode(), _PACKAGES.encode())}"
    top = folder / "root"
    with installing(folder, _PACKAGES) as is_absent:
        if is_absent:
            options = ("--variant=extract", "--architectures=arm64", f"--include={_PACKAGES}")
            machine.make_debian(_SUITE, top, options)
            own = (f"/usr/local/lib/python{OF_DEBIAN}/dist-packages", str(PLACE), str(_PYTHON))
            for path in (*_FOLDERS, *own, "/work"):
                Path(f"{top}{path}").mkdir(parents=True, exist_ok=True)
            _compile(OF_DEBIAN, top / "usr" / "lib" / f"python{OF_DEBIAN}")
    if python == OF_DEBIAN:
        return Root(top, python, {})
    return Root(top, python, {str(_PYTHON): python_folder(python, ARM64)})


def _packages(root: Root, of_image: Sequence[str]) -> Path:
    """Return a folder with the packages of an image's Python (`image`), and an environment next to
    them with the locked requirements (`product`), as the Dockerfile makes it. The requirements hide
    packages of the same name: those of the image are left out."""
    of_image = [one for one in of_image if one.partition("==")[0] not in pins("collector")]
    locked, chosen = requirements("collector"), words_for_arm64(root.python)
    (install,) = pip_commands("collector", f"/opt/{locked.name}")
    words = repr((install, of_image, chosen, _NOT_COMPILED, root.folder.parent.name))
    folder = cache() / f"product-packages-{ARM64}-{digest(locked.read_bytes(), words.encode())}"
    with installing(folder, words) as is_absent:
        if is_absent:
            of_vendor = [f"{PLACE}/bin/pip", "install", "--only-binary", ":all:", *of_image]
            _install(of_vendor, folder / "image", chosen, {})
            venv = folder / "product"
            venv.mkdir()
            made = root.run(
                [
                    root.interpreter,
                    "-m",
                    "venv",
                    "--system-site-packages",
                    "--without-pip",
                    str(PLACE),
                ],
                {str(PLACE): venv},
            )
            assert made.returncode == 0, made.stderr
            _install(install, site_of(venv), chosen, {f"/opt/{locked.name}": str(locked)})
            for part in (folder, *root.mounts.values()):
                _compile(root.python, part)
    return folder


def _install(
    words: Sequence[str], target: Path, chosen: Sequence[str], paths: Mapping[str, str]
) -> None:
    """Run a command of pip for a folder of packages of arm64, by the pip of this machine."""
    options = ["install", "--quiet", "--no-compile", "--target", str(target), *chosen]
    own = {f"{PLACE}/bin/pip": f"{sys.executable} -m pip", "install": shlex.join(options)}
    run_words(words, own | dict(paths))


def _compile(python: str, folder: Path) -> None:
    """Compile the modules of a folder for a version of Python, if this machine has it."""
    own = sys.executable
    if python not in platform.python_version():
        if python == OF_DEBIAN:
            return
        own = str(python_folder(python) / "bin" / "python3")
    words = [own, "-m", "compileall", "-qq", "-x", _NOT_COMPILED, str(folder)]
    subprocess.run(words, env=clean_environ(), check=False, capture_output=True)
