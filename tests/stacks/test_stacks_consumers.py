"""Simulators read what opmeter wrote: msmodeling's TensorCast a database and a pulled tree,
AIConfigurator an exported system.

AIConfigurator is installed from the registry, without its dependencies that the command does not
import. msmodeling is in no registry: OPMETER_TEST_MSMODELING names the python of an environment in
which `tensor_cast` can be imported (`python -m venv ms`, `ms/bin/pip install CHECKOUT` for a clone
of https://gitcode.com/Ascend/msmodeling); opmeter and its requirements are added to it.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from collector.database.commits import find_head
from collector.database.pull import pull_version
from collector.engine.wheel import cache
from collector.model.record import read_table
from collector.profiles.bundled import bundled_file
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.topology import Grid
from collector.store.file import FileStore
from jobs.cli.export import export_command
from tests.lacking import lacking
from tests.stacks.product_environment import ROOT, clean_environ, installing
from tests.unit.opmeter.made import PATH, Row, merged, product, recorded

pytestmark = pytest.mark.slow

MSMODELING = "OPMETER_TEST_MSMODELING"
WHEELS = (
    *("aiconfigurator==0.12.0", "aiconfigurator-core==0.12.0", "prettytable", "plotext"),
    *("matplotlib", "cycler", "kiwisolver", "fonttools"),
)
TPOT = re.compile(r"TPOT: +([0-9.]+) ms")
GRID = Grid((48, 8, 2))
SLOTS = 14  # of fused attention, before the table of pages


def message(operation: str, size: int, group: int, tier: int) -> Row:
    one = Collective(operation, size, "bfloat16", group, tier)
    return recorded(CollectiveCase(one, GRID, 768, "kernel").record(), 15 + group + size / 1e5)


def attention(keys: Sequence[int], mean_us: float) -> Row:
    """Decoding requests with pages of 128 keys: 16 heads of queries, 2 of keys, width 128."""
    batch = len(keys)
    extra = {
        "Runtime actual_seq_lengths_values": ",".join(map(str, range(1, batch + 1))),
        "Runtime actual_seq_lengths_kv_values": ",".join(map(str, keys)),
        "Runtime avg_seq_len": f"{sum(keys) / batch:.6f}",
        "Runtime input_layout": "TND",
        "Runtime num_key_value_heads": "2",
        "Runtime sparse_mode": "3",
    }
    cache_shape = (9000, 128, 256)
    inputs = [(batch, 16, 128), cache_shape, cache_shape, *[None] * (SLOTS - 3), (batch, 128)]
    return Row("FusedInferAttentionScore", inputs, [(batch, 16, 128)], mean_us, extra=extra)


def product_us(m: int, n: int, k: int) -> float:
    return 3 + 2 * m * n * k / 300e6 + 2 * n * k / 1.6e6


def test_tensorcast_answers_every_row_by_its_own_duration(tmp_path: Path) -> None:
    python = os.environ.get(MSMODELING)
    if python is None:
        pytest.skip(f"{MSMODELING} is not set: see this file; no registry has msmodeling")
    facts = read_table(bundled_file("quickstart", "facts.csv"))
    kernels = [
        recorded(one, one.profile.mean_us)
        for one in facts
        if one.case.inputs is not None
        and one.profile is not None
        and not one.kernel_type.startswith("hcom_")
    ]
    operations = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    rows = [
        *kernels,
        product(16, 768, 5120, 12.5),
        *(attention([length] * 4, length / 50) for length in (128, 1024, 4096)),
        attention([100, 900, 2000], 33.0),
        *(
            message(operation, size, group, tier)
            for operation in operations
            for group, tier in ((2, 2), (4, 1))
            for size in (1024, 65536, 1048576)
        ),
    ]
    store = FileStore(tmp_path / "store")
    version = merged(rows, store)
    assert version.rows == len({row.record.case_id for row in rows})
    commit = find_head(store)
    assert commit is not None
    pull_version(store, commit, tmp_path / "tree")
    here = [str(ROOT), sysconfig.get_path("purelib")]
    script = Path(__file__).with_name("queried_by_tensorcast.py")
    environ = clean_environ() | {"PYTHONPATH": os.pathsep.join(here)}
    run = subprocess.run(
        [python, script, tmp_path], env=environ, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    answers: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert answers["is_subclass"] and answers["run_s"] == pytest.approx(12.5e-6)
    for source in ("store", "tree", "half"):
        assert answers[source]["others"] == []
        assert set(answers[source]["right"]) == set(version.kernels)
    # TensorCast's own rules do not distinguish outputs, and tensors without dimensions.
    left = {kernel for kernel, *_ in answers["own"]["others"]}
    assert left <= {"Add", "Slice", "TensorMove", "FlashAttentionScore"}
    assert {"hcom_allReduce_", "FusedInferAttentionScore"} <= set(answers["own"]["right"])


@pytest.fixture(scope="session")
def aiconfigurator() -> Path:
    """Return the folder in which AIConfigurator is installed."""
    folder = cache() / "aiconfigurator"
    with installing(folder, " ".join(WHEELS)) as is_absent:
        if is_absent:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--no-compile", "--target", str(folder), *WHEELS]
            run = subprocess.run(command, env=clean_environ(), capture_output=True, text=True)
            if run.returncode:
                lacking(f"{' '.join(command)}: {run.stderr[-300:]}")
    return folder


def test_aiconfigurator_estimates_from_an_export(tmp_path: Path, aiconfigurator: Path) -> None:
    """Qwen3-32B over four ranks: a step is the sum of the durations that were measured."""
    batch, layers = 8, 64
    products = ((2560, 5120), (5120, 2048), (12800, 5120), (5120, 6400), (37984, 5120))
    tokens = [2**power for power in range(12)]
    lengths = (128, 1024, 4096)
    rows = [
        *(product(m, n, k, product_us(m, n, k)) for n, k in products for m in tokens),
        *(attention([length] * n, 20.0) for n in (1, batch, 64) for length in lengths),
        *(message("all_reduce", 2**power, 4, 1) for power in range(8, 26)),
    ]
    store = FileStore(tmp_path / "store")
    merged(rows, store)
    export_command(out=tmp_path / "systems", root=str(tmp_path / "store"))
    device = PATH.partition("/")[0]
    command = [sys.executable, "-m", "aiconfigurator.main", "cli", "estimate"]
    command += ["--systems-paths", str(tmp_path / "systems"), "--system", device]
    command += ["--backend", "vllm", "--perf-db-version", "0.18.0", "--tp-size", "4"]
    command += ["--model-path", "Qwen/Qwen3-32B", "--estimate-mode", "static_gen"]
    command += ["--isl", "1024", "--osl", "128", "--batch-size", str(batch)]
    environ = clean_environ() | {"PYTHONPATH": str(aiconfigurator), "AIC_STRICT_PROVENANCE": "1"}
    run = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    found = TPOT.search(run.stdout)
    assert found, run.stdout[-2000:] + run.stderr[-2000:]
    reduction_us = 15 + 4 + batch * 5120 * 2 / 1e5
    *of_layer_us, last_us = (product_us(batch, n, k) for n, k in products)
    measured_us = layers * (sum(of_layer_us) + 20.0 + 2 * reduction_us) + last_us + reduction_us
    # AIConfigurator adds norms and activations from the rates of the system.
    assert measured_us < float(found[1]) * 1e3 < 1.15 * measured_us
