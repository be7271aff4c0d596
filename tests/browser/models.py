"""A made database of some kernels of a model, for the tests of the model's page."""

from pathlib import Path

from collector.database.merge import CREATE, merge_plans
from collector.model.stack import Stack
from collector.store.opening import open_store
from collector.workloads.deployments import model_step
from collector.workloads.layout import layout_of
from collector.workloads.models import find_decoder
from collector.workloads.serving import Batch, Phase
from jobs.cli.options import VersionOptions
from jobs.cli.report import model_report_command
from jobs.planning.forecast import peaks_of
from jobs.planning.sources import completed_records
from jobs.planning.workload import roofline_us
from tests.unit.collector.database.campaign_maker import MadePlan, MadeShard, Tried, write_campaign

STACK = Stack(device="ATLAS_800_A3_752T_128G_DIE", vllm="0.18.0", torch="2.9.0", cann="8.5")
MODEL, LAYOUT, RELEASE = "qwen3-32b", "tp=4", "vllm-ascend-0.18"
MEASURED = ("MatMulV2", "FusedInferAttentionScore", "AddRmsNormBias")
_BATCHES = (Batch(Phase.PREFILL, 1, 4096, 4096), Batch(Phase.DECODE, 16, 1, 4096))


def write_model_database(root: Path) -> str:
    """Write a database with the cases of MEASURED, each of 1.2 times its roofline time and 1 us."""
    decoder, layout, peaks = find_decoder(MODEL), layout_of(LAYOUT), peaks_of(STACK)
    steps = [model_step(decoder, layout, batch, RELEASE) for batch in _BATCHES]
    launched = completed_records(one.record for step in steps for one in step.kernels)
    records = {one.case_id: one for one in launched if one.kernel_type in MEASURED}
    tried = {name: Tried(1.2 * roofline_us(r.case, peaks) + 1) for name, r in records.items()}
    store = open_store(str(root))
    shard = MadeShard("products", list(records.values()), [tried])
    write_campaign(store, MadePlan([shard], stack=STACK))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    return str(root)


def write_made_model(folder: Path, language: str = "en") -> Path:
    """Write the page of the model, with the times of that database."""
    root = folder / "model-database"
    if not root.exists():
        write_model_database(root)
    target = folder / f"model-{language}"
    where = VersionOptions(str(root))
    model_report_command(MODEL, layout=LAYOUT, output=target, where=where, lang=language)
    return target
