"""Images of a single program, written without a daemon, as `docker save` would have written
them."""

import hashlib
import io
import json
import platform
import tarfile
from dataclasses import dataclass
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Image:
    """`program` becomes the one file of the image, at `entrypoint`; `user` is a number."""

    name: str
    program: Path
    entrypoint: str
    user: str = ""


def write_archive(target: Path, image: Image) -> None:
    """Return the image as a docker-archive; the same program gives the same bytes."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(_config(image, digest), sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [
        {"Config": config_name, "RepoTags": [image.name], "Layers": [f"{digest}.tar"]},
    ]
    with tarfile.open(target, "w") as archive:
        _add(archive, f"{digest}.tar", layer)
        _add(archive, config_name, config)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        _add(layer, image.entrypoint.lstrip("/"), image.program.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _config(image: Image, layer: str) -> dict[str, object]:
    return {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Entrypoint": [image.entrypoint], "User": image.user, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
