"""The product in the environment of a release, as the Dockerfile's stage `collector` installs it.

    product = install_product("vllm-ascend-0.18")
    product.run("doctor")

The base is the serving environment of the cache: the interpreter, torch, torch_npu, vllm_ascend,
vLLM, triton_ascend, numpy and pandas. The Dockerfile's own commands of pip make the rest; only
their paths are others. Where the image has `--system-site-packages`, a .pth file names the folders
of the base. Nothing of the environment that runs the tests is visible in it.

The locked requirements are installed once for each content; a change of the sources costs the
wheel alone, which takes seconds.
"""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from collector.engine.environments import ServingEnvironment, install_serving
from collector.engine.wheel import cache

ROOT = Path(__file__).parents[2]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "collector", "jobs", "opmeter")
PLACE, _BASE = Path("/opt/opmeter"), "base.pth"
_DONE = "whole"  # a file with the key of what was installed
_OF_OTHERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONNOUSERSITE")


@dataclass(frozen=True, slots=True)
class ProductEnvironment:
    """The product, installed as in an image.

    python   its interpreter
    bin      folder of the command `opmeter`
    site     folder of the product's packages; those of the base come after it
    base     the serving environment below; `base.folders` has the base's packages"""

    python: Path
    bin: Path
    site: Path
    base: ServingEnvironment

    @property
    def opmeter(self) -> Path:
        return self.bin / "opmeter"

    def environ(self) -> dict[str, str]:
        """Return the variables of this process without those that name other packages."""
        return clean_environ() | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def run(
        self, *arguments: object, cwd: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `opmeter` with arguments; `env` is added to the variables."""
        return subprocess.run(
            [str(self.opmeter), *map(str, arguments)],
            cwd=cwd,
            env=self.environ() | dict(env or {}),
            capture_output=True,
            text=True,
        )


def install_product(release: str) -> ProductEnvironment:
    """Return the product as installed on a release's serving environment, for this checkout.

    The serving environment is installed first if it is absent: gigabytes, minutes."""
    base = install_serving(release)
    return install_on(base, f"product-{release}")


def install_on(base: ServingEnvironment, name: str) -> ProductEnvironment:
    """Return the product as installed on a base, in a folder of the cache for this checkout."""
    locked = _locked_requirements(base.python)
    wheel = built_wheel(base.python)
    folder = cache() / f"{name}-{digest(str(ROOT).encode())}"
    listed = "".join(f"{path}\n" for path in base.folders)
    with installing(folder, f"{locked.name} {wheel.parent.name} {listed}") as is_absent:
        if is_absent:
            _new_venv(base.python, folder, "--without-pip")
            shutil.copytree(
                site_of(locked), site_of(folder), copy_function=link, dirs_exist_ok=True
            )
            (site_of(folder) / _BASE).write_text(listed)
            paths = {str(PLACE / "bin" / "pip"): f"{folder}/bin/python -m pip"}
            (install,) = pip_commands("collector", "dist/")
            run_words(install, paths | {str(PLACE / "dist" / "*.whl"): str(wheel)})
    return ProductEnvironment(folder / "bin" / "python", folder / "bin", site_of(folder), base)


def install_on_host(release: str, commands: str) -> ProductEnvironment:
    """Return the product as the commands of a page install it, in a Python that has the packages
    of a release, from a copy of the sources."""
    base = install_serving(release)
    folder = cache() / f"product-host-{release}-{digest(str(ROOT).encode())}"
    listed = "".join(f"{path}\n" for path in base.folders)
    key = digest(commands.encode(), listed.encode(), *_contents())
    with installing(folder, key) as is_absent, tempfile.TemporaryDirectory() as source:
        if is_absent:
            _new_venv(base.python, folder)
            (site_of(folder) / _BASE).write_text(listed)
            _copy_sources(Path(source))
            env = clean_environ() | {"PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
            done = subprocess.run(
                ["bash", "-euc", commands], cwd=source, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr[-2000:]
    return ProductEnvironment(folder / "bin" / "python", folder / "bin", site_of(folder), base)


def install_pinned(python: Path, pinned: Mapping[str, str]) -> Path:
    """Return the Python of an environment with versions of packages, and what they require."""
    words = [f"{name}=={version}" for name, version in pinned.items()]
    key = digest(repr(words).encode(), _version(python))
    folder = cache() / f"product-pinned-{key}"
    with installing(folder, key) as is_absent:
        if is_absent:
            _new_venv(python, folder)
            pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet")
            run_words([*pip, "--no-compile", "--only-binary", ":all:", *words], {})
    return folder / "bin" / "python"


def pip_commands(stage: str, about: str) -> list[list[str]]:
    """Return the commands of pip in a stage of the Dockerfile that name a file, as words."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found = re.search(rf"(?ms)^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", text)
    assert found, f"Dockerfile: expected a stage {stage}"
    commands = [
        shlex.split(command)
        for line in re.findall(r"(?m)^RUN (.*)$", found[1])
        for command in re.sub(r"--mount=\S+", "", line).split("&&")
    ]
    # Variables before a command name a secret of the build.
    of_pip = [
        words[i:] for words in commands for i, word in enumerate(words) if word[-4:] == "/pip"
    ]
    return [words for words in of_pip if any(about in word for word in words)]


def clean_environ() -> dict[str, str]:
    """Return the variables of this process without those that name other packages."""
    return {name: text for name, text in os.environ.items() if name not in _OF_OTHERS}


def _locked_requirements(python: Path) -> Path:
    """Return an environment with the locked requirements alone, as the image installs them."""
    requirements = ROOT / "images" / "requirements-collector.txt"
    (install,) = pip_commands("collector", "/opt/requirements-collector.txt")
    key = digest(requirements.read_bytes(), repr(install).encode(), _version(python))
    folder = cache() / f"product-requirements-{key}"
    with installing(folder, key) as is_absent:
        if is_absent:
            _new_venv(python, folder)
            paths = {str(PLACE / "bin" / "pip"): f"{folder}/bin/python -m pip"}
            run_words(install, paths | {"/opt/requirements-collector.txt": str(requirements)})
    return folder


def built_wheel(python: Path) -> Path:
    """Return the product's wheel, built from the sources as the stage `wheel` does."""
    requirements = ROOT / "images" / "requirements-build.txt"
    (install,) = pip_commands("wheel", "/src/images/requirements-build.txt")
    (build,) = pip_commands("wheel", "/dist")
    tools_key = digest(requirements.read_bytes(), repr(install).encode(), _version(python))
    tools = cache() / f"product-build-{tools_key}"
    with installing(tools, tools_key) as is_absent:
        if is_absent:
            _new_venv(python, tools)
            paths = {"/build/bin/pip": f"{tools}/bin/python -m pip"}
            run_words(install, paths | {"/src/images/requirements-build.txt": str(requirements)})
    key = digest(tools_key.encode(), repr(build).encode(), *_contents())
    folder = cache() / f"product-wheel-{key}"
    with installing(folder, key) as is_absent, tempfile.TemporaryDirectory() as source:
        if is_absent:
            _copy_sources(Path(source))
            paths = {"/build/bin/pip": f"{tools}/bin/python -m pip"}
            run_words(build, paths | {"/src": source, "/dist": str(folder)})
    (wheel,) = folder.glob("*.whl")
    return wheel


def _source_files() -> list[Path]:
    """Return the files that the stage `wheel` copies."""
    tops = [ROOT / name for name in _SOURCES]
    below = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])]
    return sorted(path for path in below if path.is_file() and "__pycache__" not in path.parts)


def _copy_sources(folder: Path) -> None:
    for path in _source_files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _contents() -> Iterator[bytes]:
    for path in _source_files():
        yield str(path.relative_to(ROOT)).encode()
        yield path.read_bytes()


def digest(*contents: bytes) -> str:
    whole = sha256()
    for content in contents:
        whole.update(sha256(content).digest())
    return whole.hexdigest()[:16]


def _version(python: Path) -> bytes:
    return subprocess.run([python, "--version"], capture_output=True, check=True).stdout


def site_of(folder: Path) -> Path:
    (site,) = folder.glob("lib/python3*/site-packages")
    return site


def _new_venv(python: Path, folder: Path, *options: str) -> None:
    subprocess.run([python, "-m", "venv", *options, folder], check=True, env=clean_environ())


def link(source: str, target: str) -> None:
    os.link(source, target)


def run_words(words: Sequence[str], paths: Mapping[str, str]) -> None:
    """Run a command of the Dockerfile with other paths."""
    command = [part for word in words for part in shlex.split(paths.get(word, word))]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environ(), cwd="/")
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr[-2000:]}"


@contextmanager
def installing(folder: Path, key: str) -> Iterator[bool]:
    """Yield whether a folder has to be made for a key; one process at a time does so."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / _DONE
        if done.exists() and done.read_text() == key:
            yield False
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield True
        done.write_text(key)
