"""kubectl for one cluster, with its caches outside of the user's home."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.cluster.testbed.machine import command
from tests.cluster.testbed.objects import Objects

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Kubectl:
    """`executable` is ours: an installed one may be years older than the cluster."""

    executable: Path
    kubeconfig: Path
    cache: Path

    def __call__(self, *words: str | Path, text: str | None = None) -> str:
        """Return the output of kubectl. RuntimeError with its message if it fails."""
        try:
            return command([*self._start, *words], text=text)
        except RuntimeError as error:
            # Seen once in many runs, while another cluster was stopped.
            if "connection reset by peer" not in str(error):
                raise
        time.sleep(1.0)
        return command([*self._start, *words], text=text)

    def succeeds(self, *words: str | Path) -> bool:
        """Return whether kubectl succeeds within seconds."""
        words = (*self._start, "--request-timeout=5s", *words)
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    @cached_property
    def objects(self) -> Objects:
        """The reads of the same account for repeated polling."""
        return Objects(self.kubeconfig)

    def get(self, *words: str) -> Any:
        """Return objects as JSON."""
        return json.loads(self("get", *words, "-o", "json"))

    def apply(self, *manifests: Manifest, dry_run: bool = False) -> None:
        """Server-side apply, with unknown fields refused; `dry_run` changes nothing."""
        words = ["apply", "--server-side", "--validate=strict", "-f", "-"]
        self(*words, *(["--dry-run=server"] if dry_run else []), text=_as_list(manifests))

    def create(self, *manifests: Manifest) -> None:
        """Create objects, with unknown fields refused."""
        self("create", "--validate=strict", "-f", "-", text=_as_list(manifests))

    @property
    def _start(self) -> list[str | Path]:
        return [
            self.executable,
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self.cache}",
        ]


def _as_list(manifests: Sequence[Manifest]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
