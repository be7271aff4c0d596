"""Commands in the documents run as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_dry_run_of_a_site_runs_as_it_is_written():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^(opmeter launch .* --dry-run)$", text, re.MULTILINE)
    command = command.replace("{name}", "a2-800t").replace("opmeter", '"$PYTHON" -m jobs.cli', 1)
    path = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "kind: ConfigMap" in done.stdout and "kind: Job" in done.stdout
