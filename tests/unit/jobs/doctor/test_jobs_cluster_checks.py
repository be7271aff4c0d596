"""The checks of a cluster: each problem is reported with its remedy."""

import copy
from dataclasses import replace

import pytest

from jobs.doctor.cluster_checks import (
    KUEUE,
    NEEDED,
    check_account,
    check_apis,
    check_device_plugin,
    check_features,
    check_nodes,
    check_permissions,
    check_probe,
    check_version,
    sample_job,
)
from jobs.objects.deployment import Deployment
from jobs.objects.site import load_site
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast

A2 = load_site("a2-800t")
LABELS = {"accelerator-type": "module-910b-8"}


def node(name="n1", devices="8", labels=LABELS, ready="True", resource="huawei.com/Ascend910"):
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "allocatable": {"cpu": "64", resource: devices},
        },
    }


def only(checks, name):
    (check,) = [check for check in checks if check.name == name]
    return check


@pytest.mark.parametrize(
    ("version", "ok", "words"),
    [
        ("v1.36.3", True, "v1.36.3"),
        ("v1.29.0+k3s1", True, "k3s1"),
        ("v1.27.4", True, "1.29"),
        ("v1.25.0", False, "podFailurePolicy"),
        ("who knows", False, "podFailurePolicy"),
    ],
)
def test_check_of_an_old_version_names_the_missing_features(version, ok, words):
    check = check_version(version)
    assert check.ok is ok and words in check.found


def test_api_is_required_only_if_the_site_uses_it():
    assert all(check.ok for check in check_apis({}, A2))
    queued = replace(A2, kueue_queue="team")
    assert not only(check_apis({}, queued), "kueue").ok
    assert only(check_apis({KUEUE: True}, queued), "kueue").ok
    volcano = only(check_apis({}, replace(A2, scheduler="volcano")), "volcano")
    assert not volcano.ok and "Volcano" in volcano.fix


def test_missing_permissions_are_named():
    assert check_permissions(dict.fromkeys(NEEDED, True), "I").ok
    allowed = dict.fromkeys(NEEDED, True) | {("patch", "batch", "jobs"): False}
    check = check_permissions(allowed, "I")
    assert check.found.startswith("I ") and check.found.endswith(": patch jobs")
    assert "roles.yaml" in check.fix
    every = check_permissions({}, "I").found
    assert numbers(every) == [str(len(NEEDED) - 8)]  # of which eight are listed


def test_nodes_outside_of_the_selector_are_reported_with_their_labels():
    other = node(labels={"accelerator-type": "module-a3-16"})
    check = only(check_nodes([other], A2), "nodes")
    assert not check.ok
    assert missing(check.found, ["module-910b-8", "module-a3-16"]) == []
    bare = only(check_nodes([node(labels={})], A2), "nodes").found
    assert "accelerator-type=module-910b-8" in bare and "module-a3-16" not in bare


def test_nodes_of_another_type_are_reported_if_no_selector_excludes_them():
    cce = load_site("cce")
    labels = dict(cce.node_selector)
    same, other = (
        labels | {"accelerator-type": kind} for kind in ("module-910b-8", "module-a3-16")
    )
    check = only(check_nodes([node(labels=same), node("n2", labels=other)], cce), "type")
    assert not check.ok and missing(check.found, ["module-910b-8", "module-a3-16"]) == []
    for fine in (same, labels):
        assert "type" not in {check.name for check in check_nodes([node(labels=fine)], cce)}


def test_ready_nodes_are_counted():
    check = only(check_nodes([node(), node("n2", ready="False")], A2), "nodes")
    assert numbers(check.found)[:2] == ["1", "2"]
    assert not only(check_nodes([node(ready="Unknown")], A2), "nodes").ok
    assert only(check_nodes([], A2), "nodes").skipped  # this account may not list them


def test_super_pods_are_counted_by_their_label():
    near = replace(A2, super_pod_label="example.com/sp")
    of = [{**LABELS, "example.com/sp": name} for name in ("s1", "s1", "s2")] + [LABELS]
    nodes = [node(f"n{i}", labels=labels) for i, labels in enumerate(of)]
    check = only(check_nodes(nodes, near), "super-pods")
    assert check.ok and check.found.startswith("example.com/sp: ")
    # Super-pods, the nodes in them, all nodes, and the most nodes of one.
    assert numbers(check.found) == ["2", "3", "4", "2"]
    assert not only(check_nodes([node()], near), "super-pods").ok
    assert "super-pods" not in [check.name for check in check_nodes(nodes, A2)]


def test_devices_are_compared_with_the_profile():
    check = only(check_nodes([node(), node("n2", "6")], A2), "devices")
    assert check.ok
    assert missing(check.found, ["14 huawei.com/Ascend910", "2 nodes", "n2: 6"]) == []
    check = only(check_nodes([node(resource="huawei.com/ascend-1980")], A2), "devices")
    assert not check.ok and "huawei.com/ascend-1980" in check.found
    pair = replace(A2, shape="node")
    assert not only(check_nodes([node("n2", "6")], pair), "devices").ok


def test_fields_dropped_by_the_server_are_named():
    job = sample_job(A2, Deployment("n", "i", "i", "s3://b/p"))
    kept = copy.deepcopy(job)
    kept["spec"]["selector"] = {}
    assert check_features(job, kept).ok
    del kept["spec"]["backoffLimitPerIndex"]
    del kept["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]
    check = check_features(job, kept)
    assert not check.ok
    assert "spec.backoffLimitPerIndex" in check.found
    assert "spec.template.spec.containers[0].securityContext.capabilities" in check.found


def test_probe_without_a_result_quotes_the_cluster():
    events = [
        {"type": "Normal", "message": "Scheduled"},
        {"type": "Warning", "message": 'secret "s3" not found'},
        {"type": "Warning", "message": 'secret "s3" not found'},
    ]
    check = check_probe("", "no answer", events)
    assert check.found.startswith("no answer") and "Scheduled" not in check.found
    assert check.found.count('secret "s3" not found') == 1 and check.fix
    assert check_probe("CPU_x/vllm_ascend/v", "").ok


def test_account_of_the_controller_is_checked_by_its_own_rights():
    assert check_account(dict.fromkeys(NEEDED, True), "it").ok
    some = dict.fromkeys(NEEDED, True) | {("delete", "batch", "jobs"): False}
    check = check_account(some, "it")
    assert not check.ok
    assert check.found.startswith("it ") and check.found.endswith(": delete jobs")
    assert check_account(None, "it").skipped
    assert check_account(dict.fromkeys(NEEDED, False), "it").skipped  # it is not installed


def plugin(*args, name="ascend-device-plugin-daemonset", image="ascend-k8sdeviceplugin:v26"):
    command = ["/bin/bash", "-c", "--"]
    container = {"name": "device-plugin", "image": image, "command": command, "args": [*args]}
    spec = {"template": {"spec": {"containers": [container]}}}
    return {"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec}


@pytest.mark.parametrize(
    ("args", "site", "ok", "words"),
    [
        ("-useAscendDocker=true -volcanoType=true -logLevel=0", {}, False, "not get valid pod"),
        ("-volcanoType=true", {"shape": "node"}, True, "volcanoType=true"),
        ("--volcanoType", {"scheduler": "volcano"}, True, "volcanoType=true"),
        ("-volcanoType=false", {}, True, "volcanoType=false"),
        ("-logLevel=0", {}, True, "volcanoType=false"),
        ("-logLevel=0", {"scheduler": "volcano"}, False, "volcanoType=false"),
        ("-shareDevCount=4", {}, False, " 4 "),
    ],
)
def test_mode_of_the_device_plugin_is_compared_with_the_profile(args, site, ok, words):
    others = plugin("kube-proxy", name="kube-proxy", image="kube-proxy:v1")
    default = replace(A2, scheduler="default", shape="device")
    ours = plugin(f"device-plugin {args}")
    check = check_device_plugin([others, ours], replace(default, **site))
    assert check.ok is ok and words in check.found and not check.skipped
    assert check.found.startswith("kube-system/ascend-device-plugin-daemonset")
    assert ok or check.fix


def test_invisible_device_plugin_is_skipped():
    nvidia = plugin("nvidia-device-plugin", name="nvidia", image="nvidia/k8s-device-plugin")
    for shown in (None, [], [nvidia]):
        check = check_device_plugin(shown, A2)
        assert check.ok and check.skipped
    assert "volcanoType" in check_device_plugin(None, A2).found
    assert check_device_plugin([], load_site("cpu")).skipped
