"""The permissions that the component `job-policy` denies to authors of campaigns, by a real
server."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes import config

from collector.store.file import FileStore
from jobs.controller.controller import Controller
from jobs.kube.cluster import Cluster as Client
from jobs.objects.applied_campaign import config_map
from jobs.objects.deployment import Manifest
from jobs.objects.job_manifest import Deployment, merge_job, probe_job, worker_job
from jobs.objects.site import Site, StoreCa, load_site
from jobs.objects.waves import Wave
from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.shipped import apply_overlay, remove_from_cluster, write_kubeconfig
from tests.cluster.testbed.kubectl import Kubectl
from tests.unit.jobs.plans import plan_of, shards_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_PLAN = plan_of(shards_of(10.0), campaign="small")
_WAVE = Wave("small", 1, "feed", 0, (("s0",),))
_CPU = load_site("cpu")
_DRIVERS = replace(load_site("cce"), node_selector=())
# In the order in which the policy has them.
_LISTS = {
    "images": "['here/collector', 'here.example.com/team/', 'here.example.com']",
    "secrets": "['s3', 'workers']",
    "claims": "['disk']",
    "priorityClasses": "['low']",
    "hostPaths": "[]",
    "hostNetwork": "false",
    "pullSecrets": "['registry']",
    "configMaps": "['ca']",
}
_DENIED = "ValidatingAdmissionPolicy 'opmeter-jobs'"


def deployment_of(namespace: Namespace, **changes: object) -> Deployment:
    made = Deployment(
        namespace=namespace.name,
        image="here/collector:1",
        controller_image="here.example.com/team/controller@sha256:" + "0" * 64,
        root="s3://perf/x",
        store_secret="s3",
        worker_secret="workers",
        site_packages="disk",
    )
    return replace(made, **changes)


def jobs_of(deployment: Deployment, site: Site = _CPU) -> tuple[Manifest, Manifest, Manifest]:
    return (
        worker_job(_WAVE, _PLAN, site, deployment, cap=1),
        probe_job(site, deployment, "opmeter-probe-1"),
        merge_job(_PLAN.campaign, [_PLAN.number], "beef", site, deployment, partial=True),
    )


def as_account(namespace: Namespace, account: str, folder: Path) -> Namespace:
    """The namespace as one of its accounts sees it."""
    kubeconfig = write_kubeconfig(namespace, account, folder / f"{account}.json")
    own = Kubectl(namespace.kubectl.executable, kubeconfig, namespace.kubectl.cache)
    return Namespace(namespace.name, own)


def listing(**lists: str) -> str:
    """Return the patch by which an owner writes lists of the policy."""
    places = {name: f"/spec/variables/{at}" for at, name in enumerate(_LISTS)}
    patch: list[Manifest] = []
    for name, value in lists.items():
        patch.append({"op": "test", "path": f"{places[name]}/name", "value": name})
        patch.append({"op": "replace", "path": f"{places[name]}/expression", "value": value})
    return json.dumps(patch)


@contextmanager
def changed_lists(namespace: Namespace, **lists: str) -> Iterator[None]:
    """The owner has other lists in the meantime."""
    change = ("patch", "validatingadmissionpolicy", "opmeter-jobs", "--type=json", "-p")
    namespace.kubectl(*change, listing(**lists))
    try:
        yield
    finally:
        namespace.kubectl(*change, listing(**_LISTS))


@pytest.fixture(scope="module")
def policed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A namespace whose Jobs the policy checks, by _LISTS; tests leave it unchanged."""
    namespace = cluster.make_namespace()
    apply_overlay(
        namespace,
        tmp_path_factory.mktemp("policed") / "overlay",
        resources=["base"],
        components=["components/job-policy", "components/restricted"],
        patches=[
            {"target": {"kind": "ValidatingAdmissionPolicy"}, "patch": listing(**_LISTS)},
            {
                "target": {"kind": "Deployment"},
                "patch": '[{"op": "replace", "path": "/spec/replicas", "value": 0}]',
            },
        ],
    )
    yield namespace
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        namespace.kubectl("delete", kind, "opmeter-jobs")
    remove_from_cluster(namespace)
    namespace.remove()


@pytest.fixture(scope="module")
def controller(policed: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """The namespace as the controller sees it, once the policy is active."""
    found = as_account(policed, "opmeter-controller", tmp_path_factory.mktemp("controller"))
    (bad, *_) = jobs_of(deployment_of(policed, image="elsewhere/x:1"))
    (good, *_) = jobs_of(deployment_of(policed))
    policed.wait("the policy holds", lambda: _DENIED in found.refusal(bad), 60)
    policed.wait("its lists are read", lambda: not found.refusal(good), 60)
    return found


def test_listed_jobs_are_admitted_and_every_deviation_is_denied_by_name(
    controller: Namespace, policed: Namespace
):
    usual = deployment_of(policed)
    access = load_site("cpu", {"image_pull_secrets": "[registry]", "store_ca": "{config_map: ca}"})
    low, other_user = replace(_CPU, priority_class="low"), replace(_CPU, run_as_user=1001)
    for site in (_CPU, access, low, other_user):
        for job in jobs_of(usual, site):
            assert controller.refusal(job) == ""
    pinned = "here/collector@sha256:" + "1" * 64
    for image in (pinned, "here/collector", "here.example.com/team/a/b:1"):
        assert controller.refusal(jobs_of(replace(usual, image=image))[0]) == ""
    images = ("evil/x:1", "here/collector-evil:1", "here/collector/x:1", "here.example.com/teams/x")
    # A registry is not a tag: here.example.com is in the list, as a repository.
    images += (
        "here.example.com:5000/evil/x:1",
        "here.example.com.evil/x",
        "x@sha256:1",
    )
    for image in images:
        for job in jobs_of(replace(usual, image=image))[:2]:
            assert f"images of opmeter-jobs has no {image}" in controller.refusal(job)
    (*_, merge) = jobs_of(replace(usual, controller_image="evil/x:1"))
    assert "images of opmeter-jobs has no evil/x:1" in controller.refusal(merge)
    for changes, site, words in (
        (
            {"store_secret": "root", "worker_secret": ""},
            _CPU,
            "secrets of opmeter-jobs has no root",
        ),
        ({"worker_secret": "root"}, _CPU, "secrets of opmeter-jobs has no root"),
        ({"site_packages": "others"}, _CPU, "claims of opmeter-jobs has no others"),
        ({"store_claim": "others"}, _CPU, "claims of opmeter-jobs has no others"),
        ({}, replace(_CPU, priority_class="top"), "priorityClasses of opmeter-jobs has no top"),
        (
            {},
            replace(access, image_pull_secrets=("s3",)),
            "pullSecrets of opmeter-jobs has no s3",
        ),
        (
            {},
            replace(access, store_ca=StoreCa("config_map", "x")),
            "configMaps of opmeter-jobs has no x",
        ),
        (
            {},
            replace(access, store_ca=StoreCa("secret", "registry")),
            "secrets of opmeter-jobs has no registry",
        ),
        ({}, replace(_CPU, network="host"), "hostNetwork of opmeter-jobs is false"),
        ({}, _DRIVERS, "hostPaths of opmeter-jobs has no /usr/local/Ascend/driver/lib64"),
    ):
        refusal = controller.refusal(jobs_of(replace(usual, **changes), site)[0])
        assert words in refusal and "orbidden" in refusal


def test_settings_listed_by_the_owner_are_allowed(controller: Namespace, policed: Namespace):
    (job, *_) = jobs_of(deployment_of(policed), replace(_DRIVERS, network="host"))
    volumes = job["spec"]["template"]["spec"]["volumes"]
    paths = [volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume]
    with changed_lists(policed, hostPaths=repr(paths), hostNetwork="true"):
        policed.wait("the list is read", lambda: controller.refusal(job) == "", 60)
        written = copy.deepcopy(job)
        for mount in written["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
            mount.pop("readOnly", None)
        assert "paths of the host are mounted read-only" in controller.refusal(written)
    policed.wait("the old list is read", lambda: _DENIED in controller.refusal(job), 60)


def _changed(job: Manifest, **pod: object) -> Manifest:
    made = copy.deepcopy(job)
    made["spec"]["template"]["spec"] |= pod
    return made


def test_controller_under_foreign_control_gets_no_other_access(
    controller: Namespace, policed: Namespace
):
    (job, *_) = jobs_of(deployment_of(policed))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    volumes = job["spec"]["template"]["spec"]["volumes"]
    secret = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "root", "key": "a"}}}
    token = {"serviceAccountToken": {"path": "token"}}
    for pod, words in (
        ({"initContainers": [{"name": "i", "image": "evil/x:1"}]}, "has no evil/x:1"),
        ({"containers": [{**container, "env": [secret]}]}, "in no other way"),
        (
            {"containers": [{**container, "envFrom": [{"secretRef": {"name": "r"}}]}]},
            "no other way",
        ),
        ({"imagePullSecrets": [{"name": "root"}]}, "pullSecrets of opmeter-jobs has no root"),
        ({"volumes": [*volumes, {"name": "t", "projected": {"sources": [token]}}]}, "of the kinds"),
        ({"volumes": [*volumes, {"name": "t", "configMap": {"name": "x"}}]}, "has no x"),
        ({"serviceAccountName": "opmeter-controller"}, "opmeter-worker or opmeter-merge"),
        ({"hostPID": True}, "shares the processes"),
        ({"hostIPC": True}, "shares the processes"),
    ):
        assert words in controller.refusal(_changed(job, **pod)), words
    anonymous = copy.deepcopy(_changed(job, hostPID=True))
    anonymous["metadata"]["labels"] = {}
    assert "shares the processes" in controller.refusal(anonymous)


def test_job_of_opmeter_created_by_a_person_is_checked_too(
    controller: Namespace, policed: Namespace
):
    (job, *_) = jobs_of(deployment_of(policed, image="evil/x:1"))
    assert "has no evil/x:1" in policed.refusal(job)  # an administrator's
    other = copy.deepcopy(job)
    other["metadata"]["labels"] = {"app": "mine"}
    assert policed.refusal(other) == ""


def test_denial_is_an_event_of_the_campaign(
    controller: Namespace, policed: Namespace, tmp_path: Path
):
    text = "campaign: small\nsources: [{bundled: quickstart}]\nbackend: cpu\n"
    store = FileStore(tmp_path / "store")
    applied = config_map(
        "small", text, {"site": "cpu"}, deployment_of(policed, image="evil/x:1", root=store.url)
    )
    policed.create(applied)
    api = config.new_client_from_config(str(controller.kubectl.kubeconfig))
    for _ in range(2):  # the next leader gets the same error
        one = Controller(Client(api, policed.name), lambda of: store)
        assert one.reconcile() == one.reconcile() == {"small": False}
    found = policed.find("events")
    (event,) = [e for e in found if e["involvedObject"]["name"] == "opmeter-campaign-small"]
    assert event["reason"] == "Refused" and event["type"] == "Warning"
    assert "images of opmeter-jobs has no evil/x:1" in event["message"]
    assert not policed.find("jobs")
