"""The objects that `opmeter launch` uploads and applies.

A campaign is applied as a ConfigMap with sources that mean the same in the cluster.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import yaml

from collector.codec.canonical import short_hash
from collector.codec.files import MOST_YAML_BYTES, read_small_file
from collector.codec.yaml_nodes import read_node
from collector.model import keys
from collector.profiles.bundled import bundled_file
from collector.store.base import Store, create_named
from jobs.campaign.campaign_file import Campaign, RunOptions
from jobs.campaign.source_kinds import BundledSource, CasesSource
from jobs.campaign.target import resolve_stack_of
from jobs.decide.observed import Desired, Observed
from jobs.decide.wave_choice import next_gang_wave, next_wave
from jobs.objects.applied_campaign import OP_MAPPING, SITE, SITE_CHANGE, SITE_YAML, config_map
from jobs.objects.deployment import Deployment, Manifest
from jobs.objects.gangs import check_gangs, wide_gangs
from jobs.objects.job_manifest import SPEC_HASH, probe_job, worker_job
from jobs.objects.kueue import QUEUE
from jobs.objects.site import Site
from jobs.planning.lifecycle import decide, make_next, read_state
from jobs.planning.sources import LoadedSource, op_mapping_of

_OF_THIS_MACHINE = ("store", "op_mapping")  # keys of a campaign file


def campaign_object(
    campaign: Campaign,
    name: str,
    site: str,
    deployment: Deployment,
    loaded: tuple[LoadedSource, ...],
    changes: Mapping[str, str] = MappingProxyType({}),
) -> Manifest:
    """Return the ConfigMap of a campaign; `changes` are single keys of its site profile."""
    path = Path(site)
    is_file = path.suffix in (".yaml", ".yml")
    more = {SITE_YAML: read_small_file(path, MOST_YAML_BYTES).decode()} if is_file else {SITE: site}
    more |= {SITE_CHANGE + key: text for key, text in changes.items()}
    op_mapping = op_mapping_of(campaign)
    if op_mapping is not None:
        more[OP_MAPPING] = op_mapping
    return config_map(campaign.name, _portable_text(campaign, name, loaded), more, deployment)


def _portable_text(campaign: Campaign, name: str, loaded: tuple[LoadedSource, ...]) -> str:
    """Return the campaign file with sources and operators that mean the same in the cluster.

    A source in a local file is parsed here and replaced by its key, a file of operators by its
    hash. Everything else stays as written: 2.10 is not 2.1."""
    document = read_node(_text_of(name), name)
    portable = {"sources": _portable_sources}
    if campaign.operator_files:
        portable["operators"] = _portable_operators
    document.value = [
        (
            key,
            portable[key.value](value, campaign, loaded) if key.value in portable else value,
        )
        for key, value in document.value
        if key.value not in _OF_THIS_MACHINE
    ]
    return str(yaml.serialize(document, Dumper=yaml.SafeDumper, allow_unicode=True))


def _portable_sources(
    reported: yaml.Node, campaign: Campaign, loaded: tuple[LoadedSource, ...]
) -> yaml.Node | None:
    sources = []
    for node, source, found in zip(reported.value, campaign.sources, loaded, strict=True):
        if isinstance(source, BundledSource | CasesSource):
            sources.append(node)
            continue
        stack = {"stack": "target"} if found.planned.same_stack else {}
        took_us = found.planned.communication_us
        communication = {"communication_us": took_us} if took_us else {}
        known = {"cases": found.planned.sha256, "name": found.planned.name}
        sources.append(yaml.compose(yaml.safe_dump({**known, **stack, **communication})))
    return yaml.SequenceNode(reported.tag, sources, flow_style=False)


def _portable_operators(
    reported: yaml.Node, campaign: Campaign, loaded: tuple[LoadedSource, ...]
) -> yaml.Node | None:
    """Return the operators with each file by its hash, and its kernels, of those that the sources
    have, by their names: a controller executes no file."""
    names = ["all"]
    if campaign.operators is not None:
        of_sources = {one.case.kernel_type for source in loaded for one in source.records}
        names = sorted(campaign.operators & of_sources)
    files = [f"{file.name}@{file.sha256}" for file in campaign.planned_operators]
    return yaml.compose(yaml.safe_dump([*names, *files]))


def upload(campaign: Campaign, loaded: tuple[LoadedSource, ...], store: Store) -> None:
    """Upload the tables of the sources, and the files of operators; before the ConfigMap, which is
    read at once."""
    for key, data in _uploads(campaign, loaded):
        create_named(store, key, data)


def _uploads(campaign: Campaign, loaded: tuple[LoadedSource, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield the store key and the bytes of each object that only this machine has."""
    for file in campaign.operator_files:
        yield keys.operator_file(campaign.name, file.sha256), file.text.encode()
    for source, found in zip(campaign.sources, loaded, strict=True):
        if not isinstance(source, BundledSource | CasesSource):
            yield keys.source(campaign.name, found.planned.sha256), found.table


def not_uploaded(campaign: Campaign, loaded: tuple[LoadedSource, ...], store: Store) -> str:
    """Return what a dry run has not done, as comments for the YAML that follows."""
    keys_to_upload = [key for key, _ in _uploads(campaign, loaded)]
    missing = [
        key for key in keys_to_upload if not any(info.key == key for info in store.list(key))
    ]
    lines = ["Nothing is created. A Job of workers is suspended and has no queue: a controller"]
    lines += ["writes its plan and its wave into the store first, then creates and resumes it."]
    if missing:
        lines += [f"Not uploaded, so no plan can be made from it: {key}" for key in missing]
        lines += ["The same command without --dry-run uploads it."]
    return "\n".join(f"# {line}" for line in lines)


def _text_of(name: str) -> str:
    path = Path(name)
    if path.exists():
        return read_small_file(path, MOST_YAML_BYTES).decode("utf-8-sig")
    return bundled_file(name, "campaign.yaml").decode()


def as_yaml(objects: list[Manifest]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True).rstrip()


# The objects that a campaign starts with, before anything is created: for `launch --dry-run`.


def first_objects(
    campaign: Campaign, site: Site, deployment: Deployment, store: Store
) -> list[Manifest]:
    """Return the Job of the first wave.

    If the campaign does not name its stack, no plan can be made yet, and the Job of the probe is
    returned. Empty if nothing is left to measure. Reads the store, and writes nothing.

    Raises:
        BadInput: a gang does not fit any pod of the site."""
    stack = resolve_stack_of(campaign, lambda: None)
    if stack is None:
        return [named_probe(campaign, site, deployment)]
    state, options = read_state(campaign, store, stack), RunOptions()
    planned = make_next(state, decide(state, options), options)
    if planned.is_finished:
        return []
    plan = planned.plan
    check_gangs(plan, site)
    todo = [shard.shard_id for shard in plan.beyond(state.committed)]
    if not todo:
        return []
    workers = max(1, campaign.devices // site.devices_per_worker)
    desired = Desired(
        plan, workers, site.devices_per_worker, wide=wide_gangs(plan, site), at_once=site.at_once
    )
    nothing = Observed(frozenset(), ())
    wave = next_gang_wave(desired, nothing, todo, (), workers)
    wave = wave or next_wave(desired, nothing, todo, ())
    if wave is None:
        return []
    # Its plan and its wave are not written yet: a pod that starts earlier would find neither and
    # fail the Job. A controller writes them and resumes the Job. The Job names no queue, because a
    # queue would resume it earlier.
    job = worker_job(wave, plan, site, deployment, cap=workers, suspend=True)
    job["metadata"]["labels"].pop(QUEUE, None)
    return [job]


def named_probe(campaign: Campaign, site: Site, deployment: Deployment) -> Manifest:
    """Return the Job that detects the stack; its name identifies the campaign and the probe."""
    device = campaign.target.device if campaign.target else None
    job = probe_job(site, deployment, "probe", device or "")
    kept = short_hash([campaign.name, job["metadata"]["annotations"][SPEC_HASH]], 12)
    job["metadata"]["name"] = f"opmeter-probe-{kept}"
    return job
