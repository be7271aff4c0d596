"""Site profiles: what is read, and which settings a cluster would refuse."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collector.codec.errors import BadInput
from jobs.cli.app import app
from jobs.objects.site import StoreCa, bundled_sites, load_site, site_from_text
from tests.unit.jobs.printed import raises_naming

pytestmark = pytest.mark.fast

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
A3 = """\
site: mine
backend: npu
resource: huawei.com/Ascend910
devices_per_node: 16
shape: {shape}
accelerator_type: {kind}
scheduler: {scheduler}
schedule_policy: chip2-node16
cpu: "8"
memory: 64Gi
"""


def site(shape="node", kind="module-a3-16", scheduler="volcano", more=""):
    return site_from_text(
        A3.format(shape=shape, kind=kind, scheduler=scheduler) + more, path="mine.yaml"
    )


def test_every_bundled_profile_has_its_own_name():
    assert {load_site(name).name for name in bundled_sites()} == set(bundled_sites())
    x8, x16 = load_site("a3-x8-superpod"), load_site("a3-superpod")
    assert (x8.devices_per_node, x8.at_once, x8.schedule_policy) == (8, 4, "chip2-node8-sp")
    assert (x16.devices_per_node, x16.at_once, x16.schedule_policy) == (16, 8, "chip2-node16-sp")
    assert x8.scheduler == x16.scheduler == "volcano" and x8.is_of_super_pod
    assert load_site("cce-a3").devices_per_worker == 16  # a chip's only die is not for a pod


def test_reference_lists_exactly_the_bundled_profiles():
    page = (REFERENCE / "site-profile.md").read_text(encoding="utf-8")
    table = page.split("## Bundled profiles\n", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^\|`([a-z0-9-]+)`\|", table, re.MULTILINE)
    assert sorted(listed) == bundled_sites()


@pytest.mark.parametrize(
    ("shape", "kind", "scheduler", "data"),
    [
        ("device", "module-a3-16", "volcano", ["only single task job", "pair", "node"]),
        ("device", "module-a3-16", "default", ["pair", "node"]),
        ("device", "module-a3-16-super-pod", "default", ["pair", "node"]),
        ("pair", "module-a3-16-super-pod", "volcano", ["should be equal to node npu"]),
    ],
)
def test_shape_that_the_scheduler_refuses_is_refused_with_its_reason(shape, kind, scheduler, data):
    with raises_naming(BadInput, "mine.yaml:5: shape: ", *data) as refused:
        site(shape, kind, scheduler)
    assert ("Volcano" in str(refused.value)) is (scheduler == "volcano")


@pytest.mark.parametrize("shape", ["pair", "node"])
def test_other_shapes_are_accepted(shape):
    assert site(shape).shape == shape
    assert load_site("a2-800t").devices_per_worker == 1
    assert site(shape, "module-a3-16-super-pod", "default").shape == shape
    assert site(shape).devices_per_worker == {"pair": 2, "node": 16}[shape]


HAMI = {"resource": "huawei.com/Ascend910C", "accelerator_type": "", "scheduler": ""}


@pytest.mark.parametrize("changes", [{"shape": "device"}, {"devices_per_node": "15"}])
def test_odd_number_of_dies_is_refused_under_hami(changes):
    text = A3.format(shape="node", kind="x", scheduler="volcano")
    with raises_naming(BadInput, "HAMi", "huawei.com/Ascend910C"):
        site_from_text(text, path="mine.yaml", changes=HAMI | changes)
    assert site_from_text(text, path="mine.yaml", changes=HAMI).devices_per_worker == 16
    pair = site_from_text(text, path="mine.yaml", changes=HAMI | {"shape": "pair"})
    assert pair.devices_per_worker == 2


def test_volcano_requires_a_schedule_policy_or_a_node_selector():
    text = A3.format(shape="node", kind="module-910b-8", scheduler="volcano")
    silent = {"schedule_policy": ""}
    with raises_naming(BadInput, "schedule_policy", "node_selector"):
        site_from_text(text, path="mine.yaml", changes=silent)
    reported = silent | {"node_selector": "{accelerator-type: module-910b-8}"}
    assert site_from_text(text, path="mine.yaml", changes=reported).schedule_policy == ""
    others = silent | {"resource": "huawei.com/ascend-1980"}  # of a plugin with its own rules
    assert site_from_text(text, path="mine.yaml", changes=others).scheduler == "volcano"
    with raises_naming(BadInput, "schedule_policy", "node_selector"):
        site_from_text(text, path="mine.yaml", changes=others | {"accelerator_type": ""})


def test_node_limit_is_refused_for_pods_that_share_a_node():
    a2 = load_site("a2-800t")
    assert (a2.shape, a2.devices_per_node) == ("device", 8)
    with raises_naming(BadInput, "measure_concurrency: ", "8", "4", "node"):
        load_site("a2-800t", {"measure_concurrency": "4"})
    alone = load_site("a2-800t", {"measure_concurrency": "4", "shape": "node"})
    assert alone.measure_concurrency == 4
    assert load_site("a2-800t", {"measure_concurrency": "8"}).measure_concurrency == 8


@pytest.mark.parametrize("text", ["40 Gi", "40GB", "lots", "0", "-1Gi", "4KI"])
@pytest.mark.parametrize("key", ["cpu", "memory", "ephemeral_storage", "shared_memory"])
def test_invalid_quantity_is_refused_with_its_position(key, text):
    with pytest.raises(BadInput, match=f"site.{key}.*'{text}'"):
        load_site("cpu", {key: text})


@pytest.mark.parametrize(
    ("key", "refused", "accepted"),
    [
        ("node_selector", "{a b: c}", "{example.com/a_b: c}"),
        ("node_selector", "{a: b c}", "{a: b.c}"),
        ("pod_labels", "{a: " + "b" * 64 + "}", "{a: " + "b" * 63 + "}"),
        ("kueue_queue", "a b", "a"),
        ("priority_class", "Foo_Bar", "foo.bar"),
        ("runtime_class", "-a", "a"),
        ("super_pod_label", "a/b/c", "example.com/pod"),
        ("tolerations", "[{operator: Foo}]", "[{operator: Exists}]"),
        ("tolerations", "[{key: a, operator: Exists, value: x}]", "[{key: a, value: x}]"),
        ("tolerations", "[{value: x}]", "[{key: a.b/c, effect: NoSchedule}]"),
        ("tolerations", "[{key: a, effect: No}]", "[{key: a, effect: NoExecute}]"),
        (
            *("tolerations", "[{key: a, tolerationSeconds: 3}]"),
            "[{key: a, effect: NoExecute, tolerationSeconds: 3}]",
        ),
    ],
)
def test_names_that_the_api_server_refuses_are_refused_with_their_position(key, refused, accepted):
    with pytest.raises(BadInput, match=f"site.{key}"):
        load_site("cpu", {key: refused})
    load_site("cpu", {key: accepted})


def test_missing_policy_or_one_that_divides_devices_is_refused():
    with pytest.raises(BadInput, match="schedule_policy: .*divides devices"):
        load_site("a2-800t", {"schedule_policy": "chip1-softShareDev"})
    a5 = {"scheduler": "volcano"}
    assert load_site("a5-850", a5).resource == "huawei.com/npu"
    with raises_naming(BadInput, "huawei.com/npu", "schedule_policy"):
        load_site("a5-850", a5 | {"schedule_policy": ""})


@pytest.mark.parametrize(
    ("site", "policy"), [("a2-800t", "chip2-node16"), ("a3-800t", "chip8-node8")]
)
def test_policy_of_other_chips_than_those_of_the_nodes_is_refused(site, policy):
    with raises_naming(BadInput, "schedule_policy", policy, "expected"):
        load_site(site, {"schedule_policy": policy})


def test_a3_dies_are_recognised_by_the_policy_too():
    with raises_naming(BadInput, "shape", "pair", "node"):
        load_site("a3-x8", {"accelerator_type": "", "shape": "device"})


def test_cpu_site_under_volcano_needs_no_policy():
    assert load_site("cpu", {"scheduler": "volcano"}).scheduler == "volcano"


def test_virtual_slice_of_a_device_is_refused():
    text = A3.format(shape="device", kind="module-910b-8", scheduler="default")
    text = text.replace("chip2-node16", "chip8-node8")
    for name in (
        # Static and dynamic slices of MindCluster's device plugin (its documentation, 2026-11).
        *("huawei.com/Ascend910-2c", "huawei.com/Ascend910-12c.3cpu.32g", "huawei.com/npu-core"),
        *("huawei.com/Ascend910-3c.0.5cpu.8g", "huawei.com/Ascend310P-4c.3cpu.ndvpp"),
        # HAMi's, for parts of memory and cores.
        *("huawei.com/Ascend910B3-memory", "huawei.com/Ascend910B4-1-core"),
        "huawei.com/npu-memory-1Gi",
    ):
        sliced = text.replace("huawei.com/Ascend910", name)
        with pytest.raises(BadInput, match=rf"^mine\.yaml:3: resource: .*{re.escape(name)}"):
            site_from_text(sliced, path="mine.yaml")
    gpu = {"backend": "cuda", "accelerator_type": "", "schedule_policy": ""}
    for name in ("nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/gpumem"):
        with pytest.raises(BadInput, match="resource"):
            site_from_text(text, path="mine.yaml", changes=gpu | {"resource": name})
    for name in ("Ascend910", "Ascend910B4-1", "Ascend910C", "ascend-1980", "Ascend310P", "npu"):
        whole = text.replace("huawei.com/Ascend910", f"huawei.com/{name}")
        changes = {"shape": "node"} if name == "Ascend910C" else {}
        assert site_from_text(whole, path="mine.yaml", changes=changes).resource.endswith(name)
    whole = site_from_text(text, path="mine.yaml", changes=gpu | {"resource": "nvidia.com/gpu"})
    assert whole.resource == "nvidia.com/gpu"


def test_machine_type_is_that_of_the_selected_nodes():
    a3 = "node_selector: {accelerator-type: module-a3-16-super-pod}\n"
    with pytest.raises(BadInput, match=r"^mine\.yaml:6: accelerator_type: .*super-pod"):
        site(more=a3)
    assert site(kind="module-a3-16-super-pod", more=a3).machine_type == "module-a3-16-super-pod"
    silent = {"accelerator_type": ""}
    text = A3.format(shape="device", kind="x", scheduler="default") + a3
    with pytest.raises(BadInput, match=r"^mine\.yaml:5: shape: "):  # one die of an A3
        site_from_text(text, path="mine.yaml", changes=silent)


def test_npu_site_without_a_resource_name_is_refused():
    with pytest.raises(BadInput, match=r"^mine\.yaml:2: backend: .*resource"):
        site_from_text(
            A3.format(shape="node", kind="x", scheduler="default"),
            path="mine.yaml",
            changes={"resource": ""},
        )


@pytest.mark.parametrize(
    ("backend", "resource", "words"),
    [
        ("npu", "nvidia.com/gpu", "backend: cuda"),
        ("npu", "amd.com/gpu", "backend: cuda"),
        ("npu", "aliyun.com/gpu", "backend: cuda"),
        ("cuda", "huawei.com/Ascend910", "backend: npu"),
        ("cuda", "openfuyao.com/npu", "backend: npu"),
    ],
)
def test_resource_of_another_backend_is_refused(backend, resource, words):
    text = A3.format(shape="node", kind="", scheduler="default")
    text = text.replace("npu", backend).replace("huawei.com/Ascend910", resource)
    unset = dict.fromkeys(("accelerator_type", "scheduler", "schedule_policy"), "")
    with pytest.raises(BadInput, match=rf"^mine\.yaml:3: resource: .*{resource}.*{words}"):
        site_from_text(text, path="mine.yaml", changes=unset)


def test_gpu_is_not_taken_for_a_misspelt_npu():
    text = A3.format(shape="node", kind="", scheduler="default")
    with pytest.raises(BadInput, match=r"^mine\.yaml:2: backend: .*did you mean 'cuda'\?"):
        site_from_text(text.replace("npu", "gpu"), path="mine.yaml")
    for command in ("stack --backend GPU", "selftest gpu", "doctor --together gpu"):
        answer = CliRunner().invoke(app, command.split())
        assert "did you mean 'cuda'?" in str(answer.exception or answer.output), command


def test_labels_and_tolerations_are_those_of_the_site():
    more = "node_selector: {a/b: 'on'}\ntolerations:\n- {key: k, operator: Exists}\n"
    found = site(more=more)
    assert found.node_selector == (("a/b", "on"),)
    assert found.tolerations == ((("key", "k"), ("operator", "Exists")),)


RESERVED = [
    "opmeter.io/wave",
    "app.kubernetes.io/component",
    "batch.kubernetes.io/job-name",
    "kueue.x-k8s.io/queue-name",
    "jobset.sigs.k8s.io/jobset-name",
    "job-name",
    "controller-uid",
]


@pytest.mark.parametrize("key", RESERVED)
def test_reserved_label_is_refused_with_its_position(key):
    with pytest.raises(BadInput, match=rf"^mine\.yaml:13: pod_labels\.{key}: "):
        site(more=f"pod_labels:\n  team: numbers\n  {key}: controller\n")
    with pytest.raises(BadInput, match=rf"site\.pod_labels:1: pod_labels\.{key}"):
        load_site("a2-800t", {"pod_labels": f"{{{key}: x}}"})


def test_labels_with_a_similar_prefix_are_accepted():
    more = "pod_labels: {scheduling.x-k8s.io/pod-group: a, job-names: b, my.opmeter.io/c: d}\n"
    assert len(site(more=more).pod_labels) == 3


def test_toleration_may_have_a_number_of_seconds():
    with pytest.raises(BadInput, match=r"mine.yaml:12: tolerations\[0\].tolerationSeconds"):
        site(more="tolerations:\n- {key: k, tolerationSeconds: soon}\n")


def test_super_pod_label_is_refused_under_volcano():
    assert load_site("a3-800t", {"super_pod_label": "example.com/sp"}).super_pod_label
    with pytest.raises(BadInput, match="super_pod_label: .*Volcano"):
        load_site("a3-superpod", {"super_pod_label": "example.com/sp"})


def test_values_that_no_pod_can_have_are_refused_with_their_position():
    wrong = {
        "run_as_user": ["0", "HwHiAiUser"],
        "supplemental_groups": ["1001", "[-1]"],
        "host_ip_interface": ["'bond 0'", "'=eth0'", "an-interface-of-17"],
        "hccl_connect_timeout_s": ["120", "7201"],
        "host_paths": [
            *("[etc/hccn.conf]", "[/etc]", "[/opt/../etc]", "[/store/x]", "[/opt/b, /opt/b]"),
            *("[/var/run/docker.sock]", "[/usr/local]", "[/opt/a/]", "[/etc/hccn.conf/x]"),
        ],
        "image_pull_secrets": [
            *("registry", "[Registry]", "[a_b]", "[a, a]", "[-a]", "[a..b]", "[a.-b]", "['']"),
            f"[{'a' * 254}]",
        ],
        "store_ca": [
            *("ours", "{}", "{config_map: a, secret: b}", "{config_map: A}", "{configMap: a}"),
            *("{secret: a, key: ..}", "{secret: a, key: a/b}", "{key: ca.crt}"),
        ],
    }
    for key, texts in wrong.items():
        for text in texts:
            with pytest.raises(BadInput, match=rf"site\.{key}"):
                load_site("a2-800t", {key: text})
    assert load_site("a2-800t", {"run_as_user": "1001"}).run_as_group == 1001


def test_access_keys_are_refused_with_their_line_in_a_file():
    for more, place in (
        ("image_pull_secrets:\n  - good\n  - Bad\n", r"13: image_pull_secrets\[1\]"),
        ("store_ca: {config_map: Ours}\n", r"11: store_ca\.config_map"),
    ):
        with pytest.raises(BadInput, match=rf"^mine\.yaml:{place}: "):
            site(more=more)
    found = site(more="image_pull_secrets: [a, b.c]\nstore_ca: {secret: tls}\n")
    assert found.image_pull_secrets == ("a", "b.c")
    assert found.store_ca == StoreCa("secret", "tls", "ca.crt")


def test_unknown_names_are_refused_with_the_existing_ones():
    with pytest.raises(BadInput, match="a2-800t"):
        load_site("a2")
    with pytest.raises(BadInput, match="^/nowhere/site.yaml: .*No such file"):
        load_site("/nowhere/site.yaml")
    with pytest.raises(BadInput, match="'shapes'"):
        site(more="shapes: x\n")
