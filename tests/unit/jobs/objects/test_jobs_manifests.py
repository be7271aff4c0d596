"""The manifests: each one renders, validates strictly against the oldest and the newest schemas,
means what the controller reads, and requests no more permission than it needs."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from ipaddress import ip_network
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from typer.testing import CliRunner

from collector.host.npus import device_names
from collector.profiles.bundled import bundled_file
from jobs.cli.app import app
from jobs.doctor.cluster_checks import NEEDED
from jobs.kube.leader_election import MERGE_LEASE
from jobs.objects.applied_campaign import applied_from
from jobs.objects.job_manifest import Deployment, merge_job, probe_job, worker_job
from jobs.objects.object_values import quantity
from jobs.objects.pod_template import resources
from jobs.objects.site import StoreCa, bundled_sites, load_site
from jobs.objects.waves import Wave
from tests.unit.jobs.plans import plan_of, shards_of

MANIFESTS = Path(__file__).parents[4] / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (MANIFESTS / "components").iterdir())
OF_OTHERS = {
    "LocalQueue",
    "PodMonitor",
    "PrometheusRule",
}  # kinds of custom resources: Kubernetes has no schema of them
FLOOR = "1.29"
# Of the component job-policy alone.
SINCE_1_30 = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
POLICY = "NetworkPolicy"
DEPLOYMENT = Deployment(
    namespace="bench",
    image="here/collector:1",
    controller_image="here/controller:1",
    root="s3://perf/x",
    store_secret="s3",
    worker_secret="s3-workers",
    site_packages="torch",
    owner=("opmeter-campaign-small", "0123"),
    single_writer=True,
)


@cache
def kubectl():
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is not installed: apt-get install kubernetes-client")
    return found


# No rendering lives long enough to collect garbage, and one core is enough for it.
RENDERS_ONCE = {"GOGC": "off", "GOMAXPROCS": "1"}
# In C if PyYAML was built with it: the rendered text is long.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def rendered(folder):
    command = [kubectl(), "kustomize", str(folder)]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **RENDERS_ONCE}
    )
    assert answer.returncode == 0, answer.stderr
    return tuple(yaml.load_all(answer.stdout, LOADER))


def composed(components=(), campaign="quickstart", namespace="opmeter", more=None):
    """A user's overlay, in another folder. Each is rendered once: only read it."""
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": ["base", f"campaigns/{campaign}"],
        "components": list(components),
        **(more or {}),
    }
    return rendered_elsewhere(json.dumps(overlay))


@cache
def rendered_elsewhere(text):
    """The rendered objects of an overlay whose resources and components are given relative to
    MANIFESTS."""
    overlay = json.loads(text)
    with TemporaryDirectory() as folder:
        for name in ("resources", "components"):
            overlay[name] = [os.path.relpath(MANIFESTS / path, folder) for path in overlay[name]]
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        return rendered(Path(folder))


def of_kind(objects, kind):
    return [found for found in objects if found["kind"] == kind]


PINNED = {
    "images": [
        {"name": "opmeter/collector", "newName": "here/c", "digest": "sha256:" + "1" * 64},
    ]
}
OF_CAMPAIGN = {"labelSelector": "app.kubernetes.io/component=campaign"}
SITE_OF_A2 = '[{"op": "add", "path": "/data/site", "value": "a2-800t"}]'
A2 = {"patches": [{"target": OF_CAMPAIGN, "patch": SITE_OF_A2}]}


def campaign_of(objects):
    found = of_kind(objects, "ConfigMap")
    (config_map,) = [one for one in found if "campaign.yaml" in one["data"]]
    return applied_from(config_map)


@pytest.fixture(params=[FLOOR, ""], ids=["floor", "newest"])
def validate(request, monkeypatch):
    """A strict check against the schemas of one version of Kubernetes."""
    checker = pytest.importorskip(
        "kubernetes_validate",
        reason="the schemas of Kubernetes are missing (108 MB): pip install kubernetes-validate",
    )
    version = request.param or checker.latest_version()
    monkeypatch.setattr(checker.utils, "schema_contents", cache(checker.utils.schema_contents))
    unknown = SINCE_1_30 if request.param == FLOOR else ()

    def check(manifest):
        if manifest["kind"] not in unknown:
            checker.validate(manifest, version, strict=True)

    return check


# What is rendered -------------------------------------------------------------------------------


def test_all_rendered_objects_validate_strictly(validate):
    objects = [found for name in OVERLAYS for found in rendered(MANIFESTS / "overlays" / name)]
    objects += rendered(MANIFESTS)
    for name in COMPONENTS:
        found = composed([f"components/{name}"])
        objects += [one for one in found if one["kind"] not in OF_OTHERS]
    distinct = {json.dumps(found, sort_keys=True): found for found in objects}
    assert len(distinct) > 40
    for found in distinct.values():
        validate(found)


def test_root_of_the_manifests_is_a_controller_with_a_bucket_and_without_a_campaign():
    """What `kubectl apply -k manifests` applies."""
    objects = rendered(MANIFESTS)
    assert not of_kind(objects, "ConfigMap")
    (deployment,) = of_kind(objects, "Deployment")
    there = campaign_of(composed(["components/s3-secret"]))
    merge = pod_of(merge_of(there.deployment, there.site))
    assert store_mounts(pod_of(deployment)) == store_mounts(merge)
    assert {namespace_of(one) for one in objects} == {None, "opmeter"}
    roles = of_kind(objects, "Role") + of_kind(objects, "ClusterRole")
    assert set(permissions_of(roles, "opmeter-controller")) == set(NEEDED)
    assert names_of_cluster(objects) == {
        ("ClusterRole", "opmeter-nodes"),
        ("ClusterRoleBinding", "opmeter-nodes"),
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_campaign_of_an_overlay_is_accepted_by_the_controller(overlay):
    applied = campaign_of(rendered(MANIFESTS / "overlays" / overlay))
    assert applied.campaign.backend == applied.site.backend
    assert applied.deployment.store_claim or applied.deployment.store_secret


def test_overlay_names_no_chip_that_is_detected_automatically():
    chips = {"a2-800t": "Ascend910B3", "a3-800t": "Ascend910_9392"}
    for name in ("a2-example", "a2-volcano", "a3-example"):
        applied = campaign_of(rendered(MANIFESTS / "overlays" / name))
        names = device_names(chips[applied.site.name], 64)
        assert (len(names), applied.campaign.target) == (1, None)


def test_demo_uses_the_bundled_quickstart():
    text = (MANIFESTS / "campaigns/quickstart/campaign.yaml").read_bytes()
    assert text == bundled_file("quickstart", "campaign.yaml")


def test_merge_of_the_demo_fits_a_small_machine():
    applied = campaign_of(rendered(MANIFESTS / "overlays" / "cpu-demo"))
    (container,) = pod_of(merge_of(applied.deployment))["containers"]
    assert quantity(container["resources"]["requests"]["memory"]) <= 2 * 2**30


def test_demo_fits_a_kind_cluster_of_three_cpus():
    """With two controllers at once, as while the tutorial restarts it. kind's own pods request 0.95
    CPU: API server 0.25, controller manager 0.2, scheduler, etcd, kindnet and two of CoreDNS 0.1
    each. So two CPUs are too few."""
    objects = rendered(MANIFESTS / "overlays" / "cpu-demo")
    applied = campaign_of(objects)
    (deployment,) = of_kind(objects, "Deployment")
    (controller,) = deployment["spec"]["template"]["spec"]["containers"]
    pods = [pod_of(merge_of(applied.deployment)), pod_of(probe_job(applied.site, DEPLOYMENT, "p"))]
    requested = [one["containers"][0]["resources"]["requests"]["cpu"] for one in pods]
    requested.append(resources(applied.site)["cpu"])
    most = 0.95 + 2 * quantity(controller["resources"]["requests"]["cpu"])
    most += max(map(quantity, requested))
    assert 2 < most <= 3


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        ("kueue", {"kueue_queue": "opmeter"}),
        ("volcano", {"scheduler": "volcano", "volcano_queue": "default"}),
        ("ascend-runtime", {"runtime": "ascend", "runtime_class": "ascend"}),
        ("hostpath-driver", {"runtime": "hostpath", "runtime_class": ""}),
        ("hostnetwork", {"network": "host"}),
        ("pull-secret", {"image_pull_secrets": ("opmeter-registry",)}),
        ("store-ca", {"store_ca": StoreCa("config_map", "opmeter-store-ca")}),
    ],
)
def test_component_changes_only_its_own_settings(component, expected):
    parts = ["components/s3-secret", f"components/{component}"]
    applied = campaign_of(composed(parts, "npu-example", more=PINNED | A2))
    assert applied.site == replace(load_site("a2-800t"), **expected)


def test_cluster_scoped_objects_are_only_rights_and_the_namespace():
    parts = [f"components/{name}" for name in COMPONENTS if name not in ("s3-secret", "kueue")]
    objects = composed(parts)
    # A kubectl older than these kinds treats them as namespaced; no server does.
    found = {one["kind"] for one in objects if not namespace_of(one) or one["kind"] in SINCE_1_30}
    assert found == {"Namespace", "ClusterRole", "ClusterRoleBinding", *SINCE_1_30}


def namespace_of(found):
    return found["metadata"].get("namespace")


def test_images_of_a_campaign_follow_kustomize():
    images = [
        {"name": "opmeter/controller", "newName": "here/a", "newTag": "7"},
        {"name": "opmeter/collector-cpu", "newName": "here/b", "digest": "sha256:" + "1" * 64},
    ]
    objects = composed(["components/pvc-store"], more={"images": images})
    applied = campaign_of(objects)
    assert applied.deployment.controller_image == "here/a:7"
    assert applied.deployment.image == "here/b@sha256:" + "1" * 64
    (deployment,) = of_kind(objects, "Deployment")
    assert pod_of(deployment)["containers"][0]["image"] == "here/a:7"


def test_all_objects_move_to_another_namespace():
    parts = [f"components/{name}" for name in ("nodes", "pvc-store", "prometheus")]
    objects = composed([*parts, "components/kueue"], namespace="elsewhere")
    assert [found["metadata"]["name"] for found in of_kind(objects, "Namespace")] == ["elsewhere"]
    namespaces = {found["metadata"].get("namespace") for found in objects}
    assert namespaces == {None, "elsewhere"}  # None: objects of the whole cluster
    bindings = of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding")
    assert len(bindings) == 3
    assert {s["namespace"] for binding in bindings for s in binding["subjects"]} == {"elsewhere"}


def names_of_cluster(objects):
    kinds = ("ClusterRole", "ClusterRoleBinding")
    return {(f["kind"], f["metadata"]["name"]) for kind in kinds for f in of_kind(objects, kind)}


def test_two_installations_share_no_cluster_object_with_the_documented_patch():
    page = (MANIFESTS.parent / "docs" / "reference" / "manifests.md").read_text()
    (text,) = re.findall(r"```yaml\n(patches:.*?)```", page, flags=re.DOTALL)
    made = {}
    for name, more in (("a", {}), ("b", yaml.safe_load(text))):
        parts = ["components/nodes", "components/pvc-store"]
        made[name] = composed(parts, namespace=name, more=more)
    assert not names_of_cluster(made["a"]) & names_of_cluster(made["b"])
    (binding,) = of_kind(made["b"], "ClusterRoleBinding")
    assert ("ClusterRole", binding["roleRef"]["name"]) in names_of_cluster(made["b"])
    assert binding["subjects"][0]["namespace"] == "b"
    accounts = [found["metadata"]["name"] for found in of_kind(made["b"], "ServiceAccount")]
    assert pod_of(merge_of(DEPLOYMENT))["serviceAccountName"] in accounts
    applied = campaign_of(made["b"])
    (claim,) = of_kind(made["b"], "PersistentVolumeClaim")
    assert applied.deployment.store_claim == claim["metadata"]["name"]


def test_controller_reaches_the_store_like_the_pods():
    for store in ("pvc-store", "s3-secret"):
        objects = composed([f"components/{store}"])
        (deployment,) = of_kind(objects, "Deployment")
        applied = campaign_of(objects)
        merge = pod_of(merge_of(applied.deployment))
        assert store_mounts(pod_of(deployment)) == store_mounts(merge)


def test_documented_patch_writes_the_lists_of_the_policy():
    page = (MANIFESTS.parent / "docs" / "reference" / "rights.md").read_text()
    (text,) = re.findall(r"```yaml\n(components:.*?)```", page, flags=re.DOTALL)
    more = {"patches": yaml.safe_load(text)["patches"]}
    objects = composed(["components/job-policy"], more=more)
    (policy,) = of_kind(objects, "ValidatingAdmissionPolicy")
    images = {v["name"]: v["expression"] for v in policy["spec"]["variables"]}["images"]
    assert images == "['registry.example.com/opmeter/', 'registry.example.com/team/collector']"
    (binding,) = of_kind(objects, "ValidatingAdmissionPolicyBinding")
    (namespace,) = of_kind(objects, "Namespace")
    chosen = binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]
    assert chosen.items() <= namespace["metadata"]["labels"].items()


def test_workers_have_separate_credentials():
    objects = composed(["components/s3-secret"])
    there, site = campaign_of(objects).deployment, load_site("cpu")
    wave = Wave("small", 1, "feed", 0, (("s0",),))
    worker = worker_job(wave, plan(), site, there, cap=1)
    secrets = [
        [v["secret"]["secretName"] for v in pod_of(job)["volumes"] if "secret" in v]
        for job in (worker, probe_job(site, there, "probe"), merge_of(there))
    ]
    assert secrets == [["opmeter-s3-workers"], ["opmeter-s3-workers"], ["opmeter-s3"]]
    (shared,) = pod_of(probe_job(site, replace(there, worker_secret=""), "probe"))["volumes"][1:]
    assert shared["secret"]["secretName"] == "opmeter-s3"  # where there is one for all


def test_workers_have_a_separate_role():
    accounts = of_kind(composed(["components/s3-web-identity"]), "ServiceAccount")
    roles = {
        account["metadata"]["name"]: account["metadata"]["annotations"][
            "eks.amazonaws.com/role-arn"
        ]
        for account in accounts
    }
    assert roles["opmeter-controller"] == roles["opmeter-merge"] != roles["opmeter-worker"]


def test_campaign_may_name_files_only_in_folders_of_the_deployment():
    folders = []
    for parts in ([], ["components/sources"]):
        (deployment,) = of_kind(composed(parts), "Deployment")
        (container,) = pod_of(deployment)["containers"]
        folders.append(container.get("args", []))
        mounted = {m["mountPath"]: m.get("readOnly") for m in container["volumeMounts"]}
    assert folders == [[], ["--sources-folder", "/sources"]]
    assert mounted["/sources"] is True
    taken = CliRunner().invoke(app, ["controller", *folders[1], "--help"])
    assert taken.exit_code == 0 and "--sources-folder" in taken.output


def test_volume_of_one_node_is_released_before_the_next_controller_starts():
    (deployment,) = of_kind(composed(["components/pvc-store"]), "Deployment")
    (claim,) = of_kind(composed(["components/pvc-store"]), "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_local_queue_has_the_newest_version_of_kueue():
    (queue,) = of_kind(composed(["components/kueue"]), "LocalQueue")
    assert queue["apiVersion"] == "kueue.x-k8s.io/v1beta2"


def store_mounts(pod):
    """Where a pod finds the store: volumes, where they are mounted, and the values of the AWS
    variables."""
    container = pod["containers"][0]
    volumes = {v["name"]: v for v in pod["volumes"] if v["name"] in ("store", "credentials")}
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"] if m["name"] in volumes}
    message = {e["name"]: e["value"] for e in container["env"] if e["name"].startswith("AWS_")}
    assert mounted
    return volumes, mounted, message


def test_controller_pulls_its_image_and_trusts_the_store_like_the_pods():
    for store in ("s3-secret", "s3-web-identity"):
        parts = [f"components/{name}" for name in (store, "pull-secret", "store-ca")]
        objects = composed(parts)
        (deployment,) = of_kind(objects, "Deployment")
        applied = campaign_of(objects)
        reached = {access_of(pod_of(merge_of(applied.deployment, applied.site)))}
        wave = Wave("small", 1, "feed", 0, (("s0",),))
        worker = worker_job(wave, plan(), applied.site, applied.deployment, cap=1)
        probe = probe_job(applied.site, applied.deployment, "probe")
        reached |= {access_of(pod_of(job)) for job in (worker, probe, deployment)}
        assert len(reached) == 1
        assert {"opmeter-registry", "opmeter-store-ca"} <= set(re.findall(r"[\w-]+", *reached))


def access_of(pod):
    """What a pod pulls its image with, and where it finds the CA of the store."""
    (container,) = pod["containers"]
    named = [one for one in pod["volumes"] if "configMap" in one]
    mounts = [m for m in container["volumeMounts"] if m["name"] in {one["name"] for one in named}]
    bundle = [e["value"] for e in container["env"] if e["name"] == "AWS_CA_BUNDLE"]
    return json.dumps([pod["imagePullSecrets"], named, mounts, bundle], sort_keys=True)


def test_api_server_is_reachable_at_any_port_and_other_targets_are_not():
    policies = {p["metadata"]["name"]: p["spec"] for p in of_kind(composed(), POLICY)}
    deny = policies["opmeter-default-deny"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    api = policies["opmeter-api"]
    assert [rule["ports"] for rule in api["egress"]] == [[{"protocol": "TCP"}]]
    (chosen,) = api["podSelector"]["matchExpressions"]
    assert chosen["values"] == ["controller", "merge"]
    assert all("port" in p for e in policies["opmeter-store"]["egress"] for p in e["ports"])


NODES_OWN_CACHES = {ip_network("169.254.20.10/32"), ip_network("169.254.25.10/32")}


def blocks_of(policy):
    """Where a policy lets pods connect: the networks, and the exceptions of each."""
    for rule in policy.get("egress", ()):
        assert rule["to"], "a rule without `to` allows every destination"
        for peer in rule["to"]:
            if block := peer.get("ipBlock"):
                yield ip_network(block["cidr"]), [ip_network(n) for n in block.get("except", ())]


@pytest.mark.parametrize("local", ["169.254.0.0/16", "fe80::/10"])
def test_no_pod_reaches_the_credential_addresses_of_clouds(local):
    found = composed([f"components/{name}" for name in COMPONENTS])
    links, seen = ip_network(local), 0
    for policy in of_kind(found, POLICY):
        for network, but in blocks_of(policy["spec"]):
            if network.version == links.version and network.overlaps(links):
                seen += 1
                assert links in but or network in NODES_OWN_CACHES, policy["metadata"]["name"]
    assert seen >= 3


# Permissions ------------------------------------------------------------------------------------


def permissions_of(roles, name):
    """The permissions of a Role, in the form that doctor checks."""
    for rule in (r for role in roles if role["metadata"]["name"] == name for r in role["rules"]):
        names = [(n,) for n in rule.get("resourceNames", ())] or [()]
        for verb, group, resource in product(rule["verbs"], rule["apiGroups"], rule["resources"]):
            yield from ((verb, group, resource, *named) for named in names)


def test_roles_have_only_the_used_permissions():
    objects = composed(["components/nodes"])
    roles = of_kind(objects, "Role") + of_kind(objects, "ClusterRole")
    allowed = {
        (role["metadata"]["name"], group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    of_controller = set(permissions_of(roles, "opmeter-controller"))
    assert of_controller == set(NEEDED)  # what doctor checks
    for role in roles:  # of Leases only those of this project, which only a name can restrict
        leases = [p for p in permissions_of([role], role["metadata"]["name"]) if "leases" in p]
        named = {(verb, *name) for verb, _, _, *name in leases}
        assert all(len(one) == 2 for one in named if one[0] != "create")
    assert not [entry for entry in allowed if "*" in entry]
    assert not [entry for entry in allowed if entry[2] in ("secrets", "roles", "pods/exec")]
    of_cluster = {entry for entry in allowed if entry[0] == "opmeter-nodes"}
    assert {(r, v) for _, _, r, v in of_cluster} == {("nodes", "list")}
    assert ("create", "", "configmaps") not in of_controller
    of_people = {(r, v) for name, _, r, v in allowed if name == "opmeter-launcher"}
    written_by_people = {(r, v) for r, v in of_people if v not in ("get", "list")}
    assert written_by_people == {("configmaps", verb) for verb in ("create", "patch", "delete")}
    of_merge = {(r, v) for name, _, r, v in allowed if name == "opmeter-merge"}
    assert of_merge == {("leases", verb) for verb in ("get", "create", "update")}
    (merge,) = (role for role in roles if role["metadata"]["name"] == "opmeter-merge")
    named = {v: rule.get("resourceNames") for rule in merge["rules"] for v in rule["verbs"]}
    assert named == {"create": None, "get": [MERGE_LEASE], "update": [MERGE_LEASE]}
    written = {r for _, _, r, v in allowed if v not in ("get", "list", "watch")}
    assert written == {"jobs", "configmaps", "events", "leases"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_workers_have_no_role_binding_and_no_account_is_cluster_admin(overlay):
    objects = rendered(MANIFESTS / "overlays" / overlay)
    bindings = of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding")
    subjects = {subject["name"] for binding in bindings for subject in binding["subjects"]}
    assert subjects == {"opmeter-controller", "opmeter-merge"}
    assert {b["roleRef"]["name"] for b in bindings} <= {
        *("opmeter-controller", "opmeter-merge", "opmeter-nodes"),
    }
    accounts = of_kind(objects, "ServiceAccount")
    assert len(accounts) == 3
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_namespace_is_restricted_unless_drivers_come_from_the_host(overlay):
    objects = rendered(MANIFESTS / "overlays" / overlay)
    (namespace,) = of_kind(objects, "Namespace")
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    site = campaign_of(objects).site
    needs_host = site.runtime == "hostpath" or site.network == "host"
    assert level == ("privileged" if needs_host else "restricted")
    (deployment,) = of_kind(objects, "Deployment")
    assert not offences(pod_of(deployment))


# Jobs -------------------------------------------------------------------------------------------


def plan():
    return plan_of(shards_of(10.0, 10.0, 10.0), campaign="small")


def sites():
    for name in bundled_sites():
        yield load_site(name)
    a2 = load_site("a2-800t")
    yield replace(a2, name="kueue", kueue_queue="team", priority_class="low")
    yield replace(a2, name="host", runtime="hostpath", runtime_class="", network="host")
    toleration = (("key", "npu"), ("operator", "Exists"), ("tolerationSeconds", "5"))
    yield replace(a2, name="volcano", scheduler="volcano", tolerations=(toleration,))
    ids = {"run_as_user": "1001", "supplemental_groups": "[44]"}
    network = {"network": "host", "host_ip_interface": "bond0", "host_paths": "[/etc/hccn.conf]"}
    access = {"image_pull_secrets": "[registry]", "store_ca": "{config_map: ca, key: all.pem}"}
    yield replace(load_site("a3-800t", ids | network | access), name="ids")


def merge_of(deployment, site=None):
    made = site or load_site("cpu")
    return merge_job(plan().campaign, [plan().number], "feed", made, deployment, partial=True)


def jobs_of(site, *, leased=False):
    wave = Wave("small", 1, "feed", 0, (("s0",), ("s1",), ("s2",)), avoid=("bad-node",))
    claim = replace(DEPLOYMENT, store_claim="disk", store_secret="", root="file:///store")
    for made in (DEPLOYMENT, claim):
        deployment = replace(made, leased=leased)
        yield worker_job(wave, plan(), site, deployment, cap=2)
        yield merge_of(deployment, site)
        yield probe_job(site, deployment, "opmeter-probe-1")


def test_every_job_validates_strictly(validate):
    for site in sites():
        for job in jobs_of(site):
            validate(job)


def test_schemas_refuse_an_unknown_field(validate):
    job = merge_of(DEPLOYMENT)
    job["spec"]["backofLimit"] = 1
    with pytest.raises(Exception, match="backofLimit"):
        validate(job)


@pytest.mark.parametrize("site", list(sites()), ids=lambda site: site.name)
def test_pods_are_restricted_unless_drivers_come_from_the_host(site):
    for job in jobs_of(site):
        found = offences(pod_of(job))
        is_merge = job["metadata"]["labels"]["app.kubernetes.io/component"] == "merge"
        needs = set() if is_merge else host_needs(site)
        assert found == needs


@pytest.mark.parametrize("site", list(sites()), ids=lambda site: site.name)
def test_only_a_merge_with_a_lease_gets_a_service_account_token(site):
    for leased in (False, True):
        for job in jobs_of(site, leased=leased):
            pod = pod_of(job)
            is_merge = pod["serviceAccountName"] == "opmeter-merge"
            assert is_merge or pod["serviceAccountName"] == "opmeter-worker"
            assert pod["automountServiceAccountToken"] is (leased and is_merge)


def test_every_writer_gets_the_guard_of_its_store():
    merge = pod_of(merge_of(replace(DEPLOYMENT, single_writer=False, leased=True)))
    command = merge["containers"][0]["command"]
    assert command[-2:] == ["--lease", "bench"] and "--single-writer" not in command
    for message in ({"leased": True}, {"single_writer": True}, {}):
        deployment = replace(DEPLOYMENT, **{"single_writer": False, **message})
        wave = Wave("small", 1, "feed", 0, (("s0",),))
        job = worker_job(wave, plan(), load_site("cpu"), deployment, cap=1)
        reported = [e for e in pod_of(job)["containers"][0]["env"] if "SINGLE_WRITER" in e["name"]]
        assert bool(reported) is bool(message)


def host_needs(site):
    mounts = (site.backend == "npu" and site.runtime == "hostpath") or site.host_paths
    needs = {"hostPath volumes"} if mounts else set()
    return needs | ({"hostNetwork"} if site.network == "host" else set())


def pod_of(manifest):
    return manifest["spec"]["template"]["spec"]


def offences(pod):
    """What the `restricted` level of Pod Security (v1.36) would refuse in a pod."""
    found = {f"host{kind}" for kind in ("Network", "PID", "IPC") if pod.get(f"host{kind}")}
    allowed = {"configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"}
    allowed |= {"projected", "secret", "csi", "name"}
    for volume in pod["volumes"]:
        found |= {f"{kind} volumes" for kind in volume if kind not in allowed}
    context = pod["securityContext"]
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        found.add("seccompProfile")
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        found.add("runAsNonRoot")
    for container in pod["containers"]:
        own = container["securityContext"]
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.add("allowPrivilegeEscalation")
        if own.get("capabilities") != {"drop": ["ALL"]}:
            found.add("capabilities")
        if not own.get("readOnlyRootFilesystem"):
            found.add("a root file system that can be written")  # a rule of this project
        if any("hostPort" in port for port in container.get("ports", ())):
            found.add("hostPort")
    return found


def test_pod_security_check_detects_violations():
    pod = pod_of(merge_of(DEPLOYMENT))
    assert not offences(pod)
    assert offences({**pod, "hostPID": True}) == {"hostPID"}
    assert offences({**pod, "securityContext": {}}) == {"seccompProfile", "runAsNonRoot"}
    loose = {**pod["containers"][0], "securityContext": {"privileged": True}}
    assert {"capabilities", "allowPrivilegeEscalation"} < offences({**pod, "containers": [loose]})


def test_names_and_labels_fit_kubernetes():
    for job in jobs_of(load_site("cpu")):
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", job["metadata"]["name"])
        assert all(len(text) <= 63 for text in job["metadata"]["labels"].values())
