"""The site profile: the requirements of one kind of cluster node for a pod that measures on it.

Nothing about a cluster is derived from names: the resource, the labels and the scheduler's
annotations differ from site to site, so they are data. This module also checks for settings that
schedulers and device plugins would refuse.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from collector.codec.document import Entry, Fields, read_document
from collector.codec.errors import BadInput
from collector.codec.files import MOST_YAML_BYTES, read_small_file
from collector.model.stack import BACKEND_SYNONYMS, PROFILED
from jobs.objects.deployment import LABEL
from jobs.objects.object_values import LABEL_VALUE, OBJECT_NAME, QUALIFIED_NAME, quantity

ACCELERATOR_LABEL = "accelerator-type"  # of a node, by MindCluster
# HwHiAiUser of most nodes, and the user of the images (Dockerfile) and of the controller.
DEFAULT_USER = 1000
# Resources that are parts of a device (2026-11).
_SLICE = re.compile(
    r"-\d+c(?:\.|$)"  # MindCluster: Ascend910-4c, Ascend910-12c.3cpu.32g, Ascend310P-2c.1cpu
    r"|[/.-]vir\d"  # its templates: vir02, vir10_3c_32g
    r"|(?:-|/npu-)(?:core|memory|number)\b"  # HAMi: Ascend910B3-memory; npu-core of dynamic slices
    r"|/mig-|\.shared$"  # NVIDIA
    r"|/v(?:npu|gpu|cuda)|/gpu-?(?:mem|core)"  # HAMi, Volcano, Aliyun
)
# Resources by vendor or kind, of the backend that measures them.
_KINDS = {
    "cuda": re.compile(r"^(?:nvidia|amd)\.com/|\bgpu\b", re.IGNORECASE),
    "npu": re.compile(r"^huawei\.com/|\bnpu\b|ascend", re.IGNORECASE),
}
_A5 = "huawei.com/npu"  # of Atlas 350, 850 and 950
_MINDCLUSTER = frozenset(f"huawei.com/{n}" for n in ("Ascend910", "Ascend310", "Ascend310P", "npu"))


@dataclass(frozen=True, slots=True)
class StoreCa:
    """The object of the namespace with the certificates of the CAs that the store's endpoint needs.

    `kind` is `config_map` or `secret`; `key` is its entry, with certificates in PEM."""

    kind: str
    name: str
    key: str = "ca.crt"


@dataclass(frozen=True, slots=True)
class Site:
    """The profile of one kind of cluster node.

    Attributes:
        resource: the name of a device in this cluster; empty for a cpu.
        cpu, memory, ephemeral_storage, shared_memory: Kubernetes quantities of one worker.
        measure_concurrency: how many sessions may measure concurrently in one pod, or on a node for
            the shape `node`. Every device of the pod has a worker. On A3 two dies of one chip
            measure concurrently only if it allows all dies.
        ranks_per_pod: how many ranks of a gang a pod without devices holds; 0 for all of them.
        super_pod_label: the node label whose value identifies a super-pod: a gang stays within one.
        run_as_user, run_as_group, supplemental_groups: the ids of pods that measure. They must be
            allowed to open /dev/davinci*: HwHiAiUser of the node owns it, with mode 0660.
        host_ip_interface: the interface over which pods of a gang meet, by its name in the pod.
        hccl_connect_timeout_s: how long a rank waits for the connections of all other ranks.
        host_paths: files and folders of the node that pods mount read-only at the same path.
        image_pull_secrets: Secrets with which the nodes pull the images of workers and merges.
        store_ca: the CAs that all pods trust as those of the store, in place of the public ones.
        own_operators: whether pods execute users' files of operators.
    """

    name: str
    backend: str
    devices_per_node: int
    shape: str
    cpu: str
    memory: str
    resource: str = ""
    accelerator_type: str = ""
    scheduler: str = "default"
    volcano_queue: str = ""
    kueue_queue: str = ""
    schedule_policy: str = ""
    priority_class: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    pod_labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[tuple[str, str], ...], ...] = ()
    runtime: str = "none"
    runtime_class: str = ""
    network: str = "pod"
    measure_concurrency: int = 1
    ephemeral_storage: str = "40Gi"
    shared_memory: str = "4Gi"
    ranks_per_pod: int = 0
    super_pod_label: str = ""
    run_as_user: int = DEFAULT_USER
    run_as_group: int = DEFAULT_USER
    supplemental_groups: tuple[int, ...] = ()
    host_ip_interface: str = ""
    hccl_connect_timeout_s: int = 600
    host_paths: tuple[str, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    store_ca: StoreCa | None = None
    own_operators: str = "allowed"

    @property
    def devices_per_worker(self) -> int:
        return {"device": 1, "pair": 2, "node": self.devices_per_node}[self.shape]

    @property
    def machine_type(self) -> str:
        """Return the accelerator type, which the node selector also requires if it names one."""
        return self.accelerator_type or dict(self.node_selector).get(ACCELERATOR_LABEL, "")

    @property
    def at_once(self) -> int:
        """Return how many of these devices measure concurrently."""
        return max(1, min(self.devices_per_worker, self.measure_concurrency))

    @property
    def is_of_super_pod(self) -> bool:
        """Return whether nodes reach each other over HCCS, without the network ports of NPUs."""
        return bool(self.super_pod_label) or self.machine_type.endswith("super-pod")


def concurrency_complaint(site: Site) -> str:
    """Return why a node's limit of concurrent sessions cannot be enforced; empty if it can."""
    if site.shape == "node" or site.measure_concurrency >= site.devices_per_node:
        return ""
    return (
        f"{site.measure_concurrency} of {site.devices_per_node} devices may measure concurrently, "
        f"but pods of shape {site.shape} share a node without coordination; set shape: node, or "
        "remove this key"
    )


def resource_complaint(site: Site) -> str:
    """Return why the resource is not the name of a whole device; empty if it is."""
    if site.backend == "npu" and not site.resource:
        return "an NPU site requires `resource`, such as huawei.com/Ascend910"
    kind = _kind_of(site.resource)
    if site.backend != "cpu" and kind not in ("", site.backend):  # a rehearsal may hold devices
        named = "GPUs" if kind == "cuda" else "NPUs"
        return (
            f"{site.resource} is a resource of {named}, and the backend is {site.backend}: set "
            f"backend: {kind}, or name a resource of {site.backend}"
        )
    if _SLICE.search(site.resource):
        return (
            f"{site.resource} is a slice of a device; "
            "its durations differ from those of the whole device; expected the resource of whole "
            "devices, such as huawei.com/Ascend910"
        )
    return ""


def _kind_of(resource: str) -> str:
    """Return the backend of the devices that a resource has in its name; empty if it has none."""
    found = (backend for backend, name in _KINDS.items() if name.search(resource))
    return next(found, "")


def type_complaint(site: Site) -> str:
    """Return why the accelerator type is not that of the selected nodes; empty if it is."""
    selected = dict(site.node_selector).get(ACCELERATOR_LABEL, "")
    if not selected or selected == site.accelerator_type:
        return ""
    return (
        f"node_selector requires nodes of {ACCELERATOR_LABEL} {selected}, "
        f"got {site.accelerator_type}; remove this key, or change node_selector"
    )


def policy_complaint(site: Site) -> str:
    """Return why pods of the policy would not get a whole device of these nodes; empty if they
    do."""
    if site.schedule_policy == "chip1-softShareDev":
        return "this policy of MindCluster divides devices; measure on whole devices"
    of_pairs = site.schedule_policy.startswith("chip2-")  # chips of two dies: A3
    if site.machine_type and of_pairs != site.machine_type.startswith("module-a3"):
        chips = "chip2-..." if not of_pairs else "that of A2, such as chip8-node8"
        return (
            f"nodes of {ACCELERATOR_LABEL} {site.machine_type} have other chips than "
            f"{site.schedule_policy}; expected {chips}"
        )
    return ""


def shape_complaint(site: Site) -> str:
    """Return why the cluster cannot measure with the worker's shape; empty if it can.

    The scheduler or device plugin would refuse the shape, or the pod would measure something else.
    The rules are those of MindCluster's Volcano plugin and device plugin and of HAMi (2026-08): one
    PodGroup holds all pods of a batch Job, so a wave always counts as several tasks."""
    if site.shape == "pair" and site.devices_per_node % 2:
        return f"shape pair requires an even devices_per_node, got {site.devices_per_node}"
    if site.backend != "npu":
        return ""
    if site.resource.endswith("/Ascend910C") and site.devices_per_worker % 2:
        return (
            f"HAMi allocates {site.resource} in whole chips of two: a pod would not get "
            f"{site.devices_per_worker}, because the number is rounded up; expected pair, or node "
            "with an even number of devices"
        )
    kind = site.machine_type or site.schedule_policy
    if kind.startswith(("module-a3", "chip2-")) and site.shape == "device":
        return f"{_why_not_one_die(site)}: expected pair or node"
    return _volcano_complaint(site) if site.scheduler == "volcano" else ""


def super_pod_complaint(site: Site) -> str:
    """Return why the label cannot keep a gang in one super-pod; empty if it can."""
    if site.scheduler == "volcano" and site.machine_type.endswith("super-pod"):
        return (
            "Volcano's Ascend plugin already keeps a gang in one super-pod, and this label could "
            "conflict with it; remove this key"
        )
    return ""


def _why_not_one_die(site: Site) -> str:
    if site.scheduler == "volcano":
        return (
            "Volcano's Ascend plugin refuses one NPU per pod on A3 in a Job of several pods "
            '("only single task job can request single npu")'
        )
    return (
        "an A3 chip has two dies that share power and memory, and another workload could run on "
        "the second die while a pod measures on one"
    )


def _volcano_complaint(site: Site) -> str:
    if site.machine_type.endswith("super-pod") and site.shape != "node":
        return (
            "Volcano's Ascend plugin requires whole nodes of a super-pod in a Job of several pods "
            '("should be equal to node npu"): expected node'
        )
    is_typed = site.schedule_policy or ACCELERATOR_LABEL in dict(site.node_selector)
    if site.resource == _A5 and not site.schedule_policy:
        return f"{_A5} requires schedule_policy, such as chip8-node8, under Volcano"
    if not is_typed and (site.resource in _MINDCLUSTER or not site.accelerator_type):
        return (
            "Volcano's Ascend plugin schedules a Job without a machine type as one of the "
            "first Atlas 800; set schedule_policy, such as chip8-node8, or accelerator-type in "
            "node_selector"
        )
    return ""


# Site profiles as YAML: bundled ones in one table, and those that users write.

# The keys with one of several values; the defaults are those of Site.
_CHOICES = {
    "shape": ("device", "pair", "node"),
    "scheduler": ("default", "volcano"),
    "runtime": ("ascend", "hostpath", "none"),
    "network": ("pod", "host"),
    "own_operators": ("allowed", "refused"),
}
_OF_LABELS = "up to 63 letters, digits, '-', '_' and '.', as the values of labels"
_OF_OBJECTS = "the name of an object: small letters, digits, dashes and dots"
_OF_KEYS = "a name such as example.com/name"
_TEXTS = {
    "resource": (QUALIFIED_NAME, _OF_KEYS),
    "accelerator_type": (LABEL_VALUE, _OF_LABELS),
    "kueue_queue": (LABEL_VALUE, _OF_LABELS),
    "priority_class": (OBJECT_NAME, _OF_OBJECTS),
    "runtime_class": (OBJECT_NAME, _OF_OBJECTS),
    "super_pod_label": (QUALIFIED_NAME, _OF_KEYS),
}
_OF_ANNOTATIONS = ("volcano_queue", "schedule_policy")  # whose values may be any text
_OPERATORS = ("Exists", "Equal")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_KEYS = tuple(field.name for field in fields(Site) if field.name != "name")
_REQUIRED = ("backend", "devices_per_node", "shape", "cpu", "memory")
_AMOUNTS = {"cpu": "8", "memory": "64Gi", "ephemeral_storage": "40Gi", "shared_memory": "4Gi"}
# Labels that select pods and Jobs: those of this program and its network policies, the Job
# controller, Kueue and JobSet. Another value would assign a pod to another controller.
_RESERVED = (
    *(LABEL, "app.kubernetes.io/", "batch.kubernetes.io/"),
    *("kueue.x-k8s.io/", "jobset.sigs.k8s.io/"),
)
_RESERVED_NAMES = ("job-name", "controller-uid")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")
_INTERFACE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.@-]{0,14}")  # Linux: at most 15 characters
# Seconds of HCCL_CONNECT_TIMEOUT: at least what ranks need to start from a cold disk, at most what
# HCCL accepts (CANN's environment variables, 9.1).
_TIMEOUTS_S = range(300, 7201)
# What pods may mount of a node: installed software and the files of its NPUs. A user who may write
# campaigns chooses the paths and the groups of a pod, and a socket can be used read-only.
_OF_THE_NODE = re.compile(
    r"/(?:usr/local|opt)/[\w./+-]+|/etc/(?:hccn\.conf|hccl_rootinfo\.json|ascend_install\.info)"
)
# Names of the entries of Secrets and ConfigMaps.
_OBJECT_KEY = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,253}")
_CA_KINDS = ("config_map", "secret")


def bundled_sites() -> list[str]:
    return sorted(_bundled())


def load_site(name: str, changes: Mapping[str, str] = MappingProxyType({})) -> Site:
    """Return a profile by its bundled name or by the path of a file.

    Raises:
        BadInput: the name is neither."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        try:
            text = read_small_file(path, MOST_YAML_BYTES).decode()
        except OSError as error:
            reason = error.strerror or error
            raise BadInput(f"the site profile cannot be read: {reason}", path=path) from error
        except UnicodeDecodeError as error:
            raise BadInput("the site profile is not valid UTF-8", path=path) from error
        return site_from_text(text, path=name, changes=changes)
    profiles = _bundled()
    if name in profiles:
        return _site(name, _changed(_like(profiles, name), changes, name))
    raise BadInput(
        f"site: expected {', '.join(sorted(profiles))} or the path of a YAML file, got {name!r}"
    )


def site_from_text(
    text: str, *, path: str, changes: Mapping[str, str] = MappingProxyType({})
) -> Site:
    """Return the profile in a text.

    `changes` replace single keys, each with YAML as in the file, or remove them if empty.

    Raises:
        BadInput: a value is invalid (with its line), or the scheduler would refuse the shape."""
    document = read_document(text, path)
    found = document.fields(("site", *_KEYS), required=("site", *_REQUIRED))
    return _site(found.pop("site").text(), _changed(found, changes, path))


def _bundled() -> Fields:
    text = files("jobs.objects").joinpath("sites.yaml").read_text(encoding="utf-8")
    return read_document(text, "sites.yaml").mapping()


def _like(profiles: Fields, name: str) -> Fields:
    """Return the keys of a bundled profile, with those of the profiles that it is like."""
    own = profiles[name].fields(("like", *_KEYS))
    found = _like(profiles, own.pop("like").text()) if "like" in own else Fields()
    found.update(own)
    return found


def _site(name: str, found: Fields) -> Site:
    site = Site(
        name=name,
        backend=found["backend"].choice(PROFILED, BACKEND_SYNONYMS),
        devices_per_node=found["devices_per_node"].integer(1),
        node_selector=found.read("node_selector", _pairs, ()),
        pod_labels=found.read("pod_labels", _labels, ()),
        tolerations=found.read("tolerations", lambda e: tuple(map(_toleration, e.items())), ()),
        measure_concurrency=found.read("measure_concurrency", lambda e: e.integer(1), 1),
        ranks_per_pod=found.read("ranks_per_pod", lambda e: e.integer(1), 0),
        run_as_user=(user := found.read("run_as_user", lambda e: e.integer(1), DEFAULT_USER)),
        run_as_group=found.read("run_as_group", lambda e: e.integer(1), user),
        supplemental_groups=found.read(
            "supplemental_groups", lambda e: tuple(one.integer(1) for one in e.items()), ()
        ),
        host_ip_interface=found.read("host_ip_interface", _interface, ""),
        hccl_connect_timeout_s=found.read("hccl_connect_timeout_s", _timeout_s, 600),
        host_paths=found.read("host_paths", _host_paths, ()),
        image_pull_secrets=found.read("image_pull_secrets", _object_names, ()),
        store_ca=found.read("store_ca", _store_ca, None),
        **{key: found[key].choice(of) for key, of in _CHOICES.items() if key in found},
        **{key: _amount(found[key], such_as) for key, such_as in _AMOUNTS.items() if key in found},
        **{key: found[key].text() for key in _OF_ANNOTATIONS if key in found},
        **{key: _text(found[key], *_TEXTS[key]) for key in _TEXTS if key in found},
    )
    for key, complaint in _complaints(site, found):
        if complaint:
            raise found[key].refusal(complaint)
    return site


def _complaints(site: Site, found: Fields) -> Iterator[tuple[str, str]]:
    """Yield the keys that may not go together with others, and the reason where they do not."""
    if site.ranks_per_pod and site.backend != "cpu":
        yield (
            "ranks_per_pod",
            f"a pod of site {site.name} runs one rank for each of its devices; remove this key",
        )
    if site.super_pod_label:
        yield "super_pod_label", super_pod_complaint(site)
    yield "resource" if "resource" in found else "backend", resource_complaint(site)
    if site.accelerator_type:
        yield "accelerator_type", type_complaint(site)
    if site.schedule_policy:
        yield "schedule_policy", policy_complaint(site)
    yield "shape", shape_complaint(site)
    if "measure_concurrency" in found:
        yield "measure_concurrency", concurrency_complaint(site)


def _amount(entry: Entry, such_as: str) -> str:
    if quantity(entry.text()) <= 0:
        raise entry.refusal(
            f"expected a Kubernetes quantity such as {such_as}, got {entry.text()!r}"
        )
    return entry.text()


def _text(entry: Entry, pattern: re.Pattern[str], expected: str) -> str:
    text = entry.text()
    if text and not pattern.fullmatch(text):
        raise entry.refusal(f"expected {expected}, got {text!r}")
    return text


def _interface(entry: Entry) -> str:
    if not _INTERFACE.fullmatch(entry.text()):
        raise entry.refusal(f"expected an interface such as eth0, got {entry.text()!r}")
    return entry.text()


def _timeout_s(entry: Entry) -> int:
    seconds = entry.integer(_TIMEOUTS_S[0])
    if seconds not in _TIMEOUTS_S:
        raise entry.refusal(f"HCCL accepts at most {_TIMEOUTS_S[-1]} s, got {seconds}")
    return seconds


def _host_paths(entry: Entry) -> tuple[str, ...]:
    paths = entry.distinct_texts()
    for item, text in zip(entry.items(), paths, strict=True):
        is_plain = str(PurePosixPath(text)) == text and ".." not in PurePosixPath(text).parts
        if not is_plain or not _OF_THE_NODE.fullmatch(text):
            raise item.refusal(
                "expected a path below /usr/local or /opt, or a file of NPUs such as "
                f"/etc/hccn.conf, got {text!r}"
            )
    return tuple(paths)


def _object_names(entry: Entry) -> tuple[str, ...]:
    entry.distinct_texts()
    return tuple(map(_object_name, entry.items()))


def _object_name(entry: Entry) -> str:
    if not OBJECT_NAME.fullmatch(entry.text()):
        raise entry.refusal(
            "expected the name of an object of the namespace, such as registry-key (small letters, "
            f"digits, dashes and dots), got {entry.text()!r}"
        )
    return entry.text()


def _store_ca(entry: Entry) -> StoreCa:
    found = entry.fields((*_CA_KINDS, "key"))
    kinds = [kind for kind in _CA_KINDS if kind in found]
    if len(kinds) != 1:
        raise entry.refusal(
            "expected either config_map or secret, such as {config_map: store-ca}, got "
            f"{' and '.join(kinds) or 'neither'}"
        )
    if "key" in found and not _OBJECT_KEY.fullmatch(found["key"].text()):
        raise found["key"].refusal(
            f"expected the name of an entry, such as ca.crt, got {found['key'].text()!r}"
        )
    name = _object_name(found[kinds[0]])
    return StoreCa(kinds[0], name, **({"key": found["key"].text()} if "key" in found else {}))


def _changed(found: Fields, changes: Mapping[str, str], path: str) -> Fields:
    for key, text in changes.items():
        where = f"{path}, site.{key}"
        if text.strip():
            found |= read_document(f"{key}: {text}", where).fields(_KEYS)
        elif key in _REQUIRED:
            raise BadInput(f"{where}: a profile requires this key, got an empty value")
        else:
            found.pop(key, None)
    return found


def _pairs(entry: Entry) -> tuple[tuple[str, str], ...]:
    """Return labels, or a selector of them."""
    found = entry.mapping()
    for key in found:
        if not QUALIFIED_NAME.fullmatch(key):
            raise found[key].refusal(f"expected the key of a label, {_OF_KEYS}, got {key!r}")
    return tuple((key, _text(value, LABEL_VALUE, _OF_LABELS)) for key, value in found.items())


def _labels(entry: Entry) -> tuple[tuple[str, str], ...]:
    """Return the site's own labels; refuse those that controllers use to select pods."""
    pairs = _pairs(entry)
    for key, _ in pairs:
        if key.startswith(_RESERVED) or key in _RESERVED_NAMES:
            labels = f"labels of {key.partition('/')[0]}/ are" if "/" in key else "this label is"
            where = entry.mapping()[key]
            raise where.refusal(
                f"{labels} reserved for the controllers that select pods by them; remove it"
            )
    return pairs


def _toleration(entry: Entry) -> tuple[tuple[str, str], ...]:
    found = entry.fields(_TOLERATION)
    if "tolerationSeconds" in found:
        found["tolerationSeconds"].integer(0)
        if "effect" not in found or found["effect"].text() != "NoExecute":
            raise found["tolerationSeconds"].refusal("expected it with effect: NoExecute only")
    if "effect" in found:
        found["effect"].choice(_EFFECTS)
    operator = found["operator"].choice(_OPERATORS) if "operator" in found else "Equal"
    if operator == "Exists" and "value" in found:
        raise found["value"].refusal("operator Exists has no value; remove it, or use Equal")
    if "key" in found:
        _text(found["key"], QUALIFIED_NAME, _OF_KEYS)
    elif operator != "Exists":
        raise entry.refusal("expected a key, or operator: Exists, which is of every key")
    if "value" in found:
        _text(found["value"], LABEL_VALUE, _OF_LABELS)
    return tuple((key, value.text()) for key, value in found.items())
