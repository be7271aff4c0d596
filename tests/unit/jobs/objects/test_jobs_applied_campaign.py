"""An applied campaign: the ConfigMap that is written, read again, and what is refused."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from jobs.controller.current_plan import check_sources
from jobs.objects.applied_campaign import LEASED, PAUSED, applied_from, config_map
from jobs.objects.deployment import Deployment
from jobs.objects.object_values import check_deployment_values
from tests.unit.jobs.printed import raises_naming

pytestmark = pytest.mark.fast

CAMPAIGN = "campaign: small\nsources: [{bundled: quickstart}]\nbackend: cpu\n"
PINNED = "here/collector@sha256:" + "0123456789abcdef" * 4
DEPLOYMENT = Deployment(
    namespace="bench",
    image="here/collector:1",
    controller_image="here/controller:1",
    root="s3://perf/x",
    store_secret="s3",
    single_writer=True,
    merge_memory="40Gi",
)


def made(text=CAMPAIGN, deployment=DEPLOYMENT, **more):
    manifest = config_map("small", text, {"site": "cpu"}, deployment)
    manifest["data"] |= more
    return manifest


def test_config_map_is_read_as_written():
    applied = applied_from(made())
    assert applied.campaign.name == "small"
    assert applied.site.name == "cpu"
    assert applied.deployment == DEPLOYMENT
    assert not applied.paused and not applied.allow_missing


def test_config_map_owns_the_objects_of_its_campaign():
    live = made()
    live["metadata"] |= {"uid": "u-1", "annotations": {PAUSED: "true"}}
    applied = applied_from(live)
    assert applied.deployment == replace(DEPLOYMENT, owner=("opmeter-campaign-small", "u-1"))
    assert applied.paused


def test_a_store_without_create_only_is_remembered_by_its_root():
    plain = replace(DEPLOYMENT, single_writer=False)
    live = made(deployment=plain)
    assert not applied_from(live).deployment.leased
    live["metadata"]["annotations"] = {LEASED: "s3://perf/x"}
    assert applied_from(live).deployment == replace(plain, leased=True)
    live["data"]["root"] = "s3://other/x"
    assert not applied_from(live).deployment.leased
    live["data"] |= {"root": "s3://perf/x", "single_writer": "true"}
    assert applied_from(live).deployment == DEPLOYMENT  # the user's value takes precedence


def test_single_keys_of_the_profile_are_changed_and_removed():
    live = made(CAMPAIGN.replace("cpu", "npu"), replace(DEPLOYMENT, image=PINNED))
    live["data"] |= {"site": "a2-800t", "site.kueue_queue": "team", "site.devices_per_node": "4"}
    live["data"] |= {"site.node_selector": "{disk: fast}", "site.runtime_class": ""}
    site = applied_from(live).site
    assert (site.kueue_queue, site.devices_per_node, site.runtime_class) == ("team", 4, "")
    assert site.node_selector == (("disk", "fast"),)
    assert site.resource == "huawei.com/Ascend910"  # fields that were not named stay


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"store_clam": "x"}, "'store_clam'.*'store_claim'"),
        ({"deployment.yaml": "x"}, "'deployment.yaml'"),
        ({"image": " "}, r"opmeter-campaign-small: .*\bimage\b"),
        ({"single_writer": "yes"}, "single_writer.*'yes'"),
        ({"merge_memory": "much"}, "merge_memory.*8Gi.*'much'"),
        ({"site.kueue": "x"}, "site.kueue.*'kueue'"),
        ({"site.cpu": ""}, "site.cpu: "),
        ({"site.shape": "rack"}, "site.shape.*'rack'"),
        ({"site": "moon"}, "'moon'"),
        ({"site": "/etc/site.yaml"}, r"'/etc/site.yaml'.*\ssite\.yaml"),
        ({"allow_unpinned": "1"}, "allow_unpinned.*'1'"),
        ({"campaign.yaml": "campaign: small\n"}, "small/campaign.yaml"),
    ],
)
def test_invalid_value_is_refused_with_its_key(change, words):
    with pytest.raises(BadInput, match=words):
        applied_from(made(**change))


def test_label_of_another_campaign_is_refused():
    live = made()
    live["metadata"]["labels"]["opmeter.io/campaign"] = "large"
    with raises_naming(BadInput, "'large'", "'small'"):
        applied_from(live)


def test_one_campaign_is_one_config_map():
    other = made()
    other["metadata"]["name"] = "mine"
    with pytest.raises(BadInput, match="ConfigMap mine: .*opmeter-campaign-small"):
        applied_from(other)


@pytest.mark.parametrize(
    "image", ["here/collector:1", "here/collector@sha256:12", "here/collector@sha256:" + "F" * 64]
)
def test_an_npu_image_without_a_digest_is_refused_as_by_launch(image):
    text, more = CAMPAIGN.replace("cpu", "npu"), {"site": "a2-800t"}
    loose = replace(DEPLOYMENT, image=image)
    with raises_naming(BadInput, image, "allow_unpinned: true"):
        applied_from(made(text, loose, **more))


def test_an_npu_image_with_a_tag_may_be_allowed():
    image, text, more = "here/collector:1", CAMPAIGN.replace("cpu", "npu"), {"site": "a2-800t"}
    loose = replace(DEPLOYMENT, image=image)
    allowed = applied_from(made(text, replace(loose, allow_unpinned=True), **more))
    assert allowed.deployment.allow_unpinned
    assert (
        applied_from(made(text, replace(DEPLOYMENT, image=PINNED), **more)).site.name == "a2-800t"
    )
    assert applied_from(made(deployment=loose)).deployment.image == image  # a processor


@pytest.mark.parametrize(
    ("key", "refused", "accepted"),
    [
        ("image", "here/collector", "here:5000/a/b:v1"),
        ("image", "Here/A:1", "a@sha256:" + "0" * 64),
        ("controller_image", "a b:1", "a__b/c-d:1@sha256:" + "0" * 64),
        ("image", "here/collector@sha256:12", "here/collector:1_a.b"),
        ("namespace", "a" * 64, "a" * 63),
        ("namespace", "a.b", "a-b"),
        ("store_secret", "Bad_Name", "a.b-c"),
        ("worker_secret", "-a", "a"),
        ("store_claim", "a" * 254, "a" * 253),
        ("site_packages", "a/b", "torch"),
        ("pull_policy", "Sometimes", "Never"),
        ("merge_memory", "8KB", "8e9"),
        ("merge_memory", "1e3Gi", "1E"),
    ],
)
def test_values_that_the_api_server_refuses_are_refused_with_their_option(key, refused, accepted):
    with raises_naming(BadInput, f"--{key.replace('_', '-')}", refused):
        check_deployment_values(replace(DEPLOYMENT, **{key: refused}))
    check_deployment_values(replace(DEPLOYMENT, **{key: accepted}))
    with raises_naming(BadInput, refused):
        applied_from(made(deployment=replace(DEPLOYMENT, **{key: refused})))


def test_store_claim_is_refused_for_pods_with_another_user():
    other = {"site.run_as_user": "1001"}
    assert applied_from(made(**other)).site.run_as_user == 1001
    with raises_naming(BadInput, "run_as_user", "1000", "1001", "bucket"):
        applied_from(made(**other, store_claim="disk"))


def test_site_of_another_backend_than_the_campaign_is_refused():
    with raises_naming(BadInput, "small", "cpu", "npu"):
        applied_from(made(site="a2-800t"))


@pytest.mark.parametrize(
    ("site", "grid", "fits"),
    [
        ("a3-800t", "[48, 8, 2]", True),
        ("a2-800t", "[48, 8, 2]", False),  # 16 ranks of two nodes would be labelled as those of one
        ("a2-800t", "[128, 8]", True),
        ("a2-800t", "[8]", True),
    ],
)
def test_grid_of_ranks_must_fit_the_nodes_of_the_site(site, grid, fits):
    of_ranks = f"sources: [{{collectives: {{groups: [2], grid: {grid}}}}}]"
    text = f"campaign: small\n{of_ranks}\nbackend: npu\n"
    config_map = made(text, replace(DEPLOYMENT, image=PINNED), site=site)
    if fits:
        assert applied_from(config_map).campaign.sources
        return
    with raises_naming(BadInput, "48 8 2", "a2-800t", "8"):
        applied_from(config_map)


def test_npu_campaign_requires_a_site():
    live = made(CAMPAIGN.replace("cpu", "npu"))
    del live["data"]["site"]
    with raises_naming(BadInput, "site", "site.yaml"):
        applied_from(live)


def test_files_of_a_campaign_must_be_in_a_sources_folder(tmp_path):
    (tmp_path / "op_mapping.yaml").write_text("x")
    for line in (f"sources: [{{profile: {tmp_path}}}]", f"sources: [{{tree: {tmp_path}}}]"):
        campaign = applied_from(made(f"campaign: small\nbackend: cpu\n{line}\n")).campaign
        check_sources(campaign, [tmp_path])
        with raises_naming(BadInput, "--sources-folder", "opmeter launch CAMPAIGN"):
            check_sources(campaign, ())
    named = applied_from(made(f"{CAMPAIGN}op_mapping: {tmp_path}/op_mapping.yaml\n")).campaign
    check_sources(named, [tmp_path])
    with raises_naming(BadInput, "small: ", "op_mapping.yaml: ", "--sources-folder"):
        check_sources(named, ())
