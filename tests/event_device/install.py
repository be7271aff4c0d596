"""Build the device `eventful` into a folder of Python packages, as pip would install it."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

from tests.lacking import lacking

_HERE = Path(__file__).parent
_METADATA = "Metadata-Version: 2.1\nName: eventful\nVersion: 1.0\n"
_ENTRY_POINTS = "[torch.backends]\neventful = eventful:_autoload\n"


def compiled(source: Path, library: Path) -> Path:
    """Compile an extension of torch without its Python; skip the test without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        lacking("no g++: apt-get install g++")
    home = Path(torch.__file__).parent
    command = [compiler, "-O0", "-shared", "-fPIC", "-std=c++20", f"-I{home / 'include'}"]
    command += ["-o", str(library), str(source), f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    return library


def event_device_site() -> Path:
    """Return a folder for PYTHONPATH with the device, built once for a torch and a source."""
    source = _HERE / "device.cpp"
    parts = (source.read_bytes(), (_HERE / "eventful.py").read_bytes(), torch.__version__.encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    cache = Path(os.environ.get("OPMETER_CACHE", Path.home() / ".cache" / "opmeter"))
    site = cache / f"event-device-{key}"
    if site.exists():
        return site
    made = site.with_name(f"{site.name}.{os.getpid()}")
    info = made / "eventful-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(_METADATA)
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    shutil.copy(_HERE / "eventful.py", made)
    compiled(source, made / "libeventful.so")
    try:
        made.rename(site)
    except OSError:  # another process was faster
        shutil.rmtree(made)
    return site
