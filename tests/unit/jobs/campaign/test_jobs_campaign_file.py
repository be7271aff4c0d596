"""A campaign file: what each key means, and the one-line error for each mistake."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model.plan import Limits, MeasureSettings, ShardSettings
from jobs.campaign.campaign_file import (
    Campaign,
    QualitySettings,
    RuntimeValues,
    SamplingSettings,
    Target,
    campaign_from_text,
    load_campaign,
)
from jobs.campaign.source_kinds import BundledSource, ProfileSource, TreeSource
from tests.unit.jobs.printed import missing

pytestmark = pytest.mark.fast

BASE = Path("/campaigns")
SMALL = "campaign: a\nsources: [{bundled: quickstart}]\nbackend: cpu\n"
_SERVING = "{concurrency: [1], input: 8, output: 8}"
_MODEL = f"{{model: qwen3-32b, layout: {{tp: 1}}, serving: {_SERVING}}}"
BACKENDS = ["npu", "cuda", "cpu"]
KINDS = "profile, tree, bundled, cases, collectives, model"
CREDENTIALS = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"]
PROFILED = SMALL.replace("bundled: quickstart", "profile: run")
FULL = """\
campaign: llama-a3-cann85
sources:
  - {profile: profiles/rank0_ascend_pt, stack: target}
  - {profile: /data/rank1_ascend_pt}
  - {tree: tree/ATLAS_800_A3_752T_128G_DIE/vllm_ascend/v}
  - {bundled: quickstart}
operators: [Add, MatMulV3]
update: all
target: {device: ATLAS_800_A3_752T_128G_DIE, vllm: 0.18.0, torch: 2.10, cann: 8.5,
         driver: 25.2.1, firmware: "7.7", torch_npu: 2.9.0}
backend: npu
devices: 64
measure: {budget_s: 0.5, repeats: [5, 50], cache: cold, aic_metrics: [PipeUtilization, Memory]}
shards: {target_s: 600, session_s: 120}
limits: {case_s: 30, memory_gb: 28.5}
quality: {repeat_share: 0.05}
runtime: {kv_length: [1024, 4096]}
op_mapping: op_mapping.yaml
store: s3://perf/opmeter
"""


def read(text: str) -> Campaign:
    return campaign_from_text(text, path="c.yaml", base=BASE)


def test_every_key_is_read() -> None:
    assert read(FULL) == Campaign(
        name="llama-a3-cann85",
        sources=(
            ProfileSource(BASE / "profiles/rank0_ascend_pt", same_stack=True),
            ProfileSource(Path("/data/rank1_ascend_pt"), same_stack=False),
            TreeSource(BASE / "tree/ATLAS_800_A3_752T_128G_DIE/vllm_ascend/v"),
            BundledSource("quickstart"),
        ),
        operators=frozenset({"Add", "MatMulV3"}),
        update="all",
        target=Target(
            device="ATLAS_800_A3_752T_128G_DIE",
            vllm="0.18.0",
            torch="2.10",
            cann="8.5",
            driver="25.2.1",
            firmware="7.7",
            torch_npu="2.9.0",
        ),
        backend="npu",
        devices=64,
        measure=MeasureSettings(0.5, 5, 50, None, "cold", ("PipeUtilization", "Memory")),
        shards=ShardSettings(600.0, 120.0),
        limits=Limits(30.0, 28.5),
        quality=QualitySettings(0.05),
        sampling=None,
        runtime=RuntimeValues((1024, 4096)),
        op_mapping=BASE / "op_mapping.yaml",
        store="s3://perf/opmeter",
    )


def test_omitted_keys_have_defaults() -> None:
    campaign = read(SMALL)
    assert campaign.operators is None
    assert campaign.target is None
    assert (campaign.update, campaign.devices) == ("missing-only", 1)
    assert (campaign.measure, campaign.shards, campaign.limits) == (
        MeasureSettings(),
        ShardSettings(),
        Limits(),
    )
    assert (campaign.op_mapping, campaign.store) == (None, None)


def test_values_may_be_given_in_other_spellings() -> None:
    campaign = read(
        SMALL + "operators: all\ntarget: here\nmeasure: {repeats: 7, budget_s: 1e-1}\nstore: data\n"
    )
    assert (campaign.operators, campaign.target) == (None, None)
    assert campaign.measure.repeat_count == 7
    assert campaign.measure.budget_s == 0.1
    assert campaign.store == "/campaigns/data"


@pytest.mark.parametrize("precision", ["2%", "0.02", "2.0%"])
def test_precision_is_a_share_of_the_mean_and_allows_more_repeats(precision) -> None:
    measure = read(SMALL + f"measure: {{precision: {precision}}}\n").measure
    assert (measure.precision, measure.min_repeats, measure.max_repeats) == (0.02, 3, 1000)
    bounded = read(SMALL + "measure: {precision: 1%, repeats: [5, 50]}\n").measure
    assert (bounded.min_repeats, bounded.max_repeats) == (5, 50)


def test_a_sampling_is_a_tolerance_and_at_most_a_share() -> None:
    assert read(SMALL + "sampling: {tolerance: 5%}\n").sampling == SamplingSettings(0.05, 0.25)
    reported = read(SMALL + "sampling: {tolerance: 0.1, share: 40%}\n").sampling
    assert reported == SamplingSettings(0.1, 0.4)


@pytest.mark.parametrize(
    ("operators", "named"), [("[m.py]", set()), ("[Add, m.py]", {"Add"}), ("[all, m.py]", None)]
)
def test_operators_may_be_files_which_reading_does_not_execute(
    operators: str, named: set[str] | None, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text("1 / 0\n")
    text = f"{SMALL}operators: {operators}\n"
    campaign = campaign_from_text(text, path="c.yaml", base=tmp_path)
    assert campaign.operators == named
    assert [(one.name, one.text) for one in campaign.operator_files] == [("m.py", "1 / 0\n")]


def test_compiled_variant_in_operators_is_normalised() -> None:
    assert read(SMALL + "operators: [muls_add_kernel_1]").operators == {"muls_add_kernel"}


@pytest.mark.parametrize(
    "address",
    [
        *("s3://me:hush@bucket/x", "s3:me:hush@bucket", "me:hush@bucket", "//me:hush@bucket"),
        *(
            "ftp://hush/x",
            "'s3:\\\\me:hush@b'",
            "s3://me%3Ahush%40b/x",
            "hush:x/y",
            "[hush]",
            "{a: hush}",
        ),
    ],
)
def test_store_address_with_a_secret_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(SMALL + f"store: {address}\n")
    assert str(caught.value).startswith("c.yaml:4: store: ")
    assert "hush" not in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "place", "data"),
    [
        (SMALL + "opertors: all\n", "c.yaml:4: ", ["'opertors'", "'operators'"]),
        (SMALL + "measure:\n  budget: 1\n", "c.yaml:5: measure: ", ["'budget'", "'budget_s'"]),
        (SMALL + "limits: {zzz: 1}\n", "c.yaml:4: limits: ", ["'zzz'", "case_s, memory_gb"]),
        (SMALL + "<<: {devices: 2}\n", "c.yaml:4: ", ["'<<'", "campaign, sources"]),
        (SMALL + "? [a]\n: 1\n", "c.yaml:4: ", ["key"]),
        (SMALL + "backend: npu\n", "c.yaml:4: ", ["'backend'"]),
        ("campaign: a\nbackend: cpu\n", "c.yaml:1: ", ["'sources'"]),
        (SMALL.replace(": a\n", ": Llama_3\n"), "c.yaml:1: campaign", ["'Llama_3'", "40"]),
        (SMALL.replace(": a\n", ":\n"), "c.yaml:1: campaign: ", []),
        (SMALL.replace(": a\n", ": [a]\n"), "c.yaml:1: campaign: ", ["list"]),
        (SMALL.replace("cpu", "gpu"), "c.yaml:3: backend: ", [*BACKENDS, "'gpu'", "mean 'cuda'"]),
        (
            SMALL + "update: missing\n",
            "c.yaml:4: update: ",
            ["all", "missing-only", "precision", "'missing'", "'missing-only'"],
        ),
        (SMALL + "devices: 0\n", "c.yaml:4: devices: ", ["1", "0"]),
        (SMALL + "devices: -4\n", "c.yaml:4: devices: ", ["1", "-4"]),
        (SMALL + "devices: 1.5\n", "c.yaml:4: devices: ", ["1", "'1.5'"]),
        (SMALL + "devices: '8'\n", "c.yaml:4: devices: ", ["1", "'8'"]),
        (SMALL + "devices: {}\n", "c.yaml:4: devices: ", ["1", "mapping"]),
        (SMALL + "measure: {budget_s: -1}\n", "c.yaml:4: measure.budget_s: ", ["0", "-1"]),
        (SMALL + "sampling: {share: 40%}\n", "c.yaml:4: sampling: ", ["'tolerance'"]),
        (
            SMALL + "sampling: {tolerance: 0}\n",
            "c.yaml:4: sampling.tolerance: ",
            ["1%", "0.01", "0"],
        ),
        (
            SMALL + "update: all\nsampling: {tolerance: 5%}\n",
            "c.yaml:5: sampling: ",
            ["update: all"],
        ),
        (SMALL + "update: precision\n", "c.yaml:4: update: ", ["budget_device_h"]),
        (
            SMALL + "quality: {budget_device_h: 2}\n",
            "c.yaml:1: ",
            ["update: precision", "budget_device_h"],
        ),
        (
            SMALL + "quality: {repeat_share: 2%}\n",
            "c.yaml:4: quality.repeat_share: ",
            ["0", "1", "'2%'"],
        ),
        (
            SMALL + "quality: {repeat_share: 2}\n",
            "c.yaml:4: quality.repeat_share: ",
            ["0", "1", "2"],
        ),
        (
            SMALL + "quality: {sessions: 3, repeat_share: 0.1}\n",
            "c.yaml:4: quality.sessions: ",
            ["repeat_share"],
        ),
        (SMALL + "quality: {sessions: 101}\n", "c.yaml:4: quality.sessions: ", ["100", "101"]),
        (SMALL + "limits: {memory_gb: nan}\n", "c.yaml:4: limits.memory_gb: ", ["0", "nan"]),
        (SMALL + "shards: {target_s: soon}\n", "c.yaml:4: shards.target_s: ", ["0", "'soon'"]),
        (SMALL + "shards: 12\n", "c.yaml:4: shards: ", ["target_s, session_s", "'12'"]),
        (
            SMALL + "measure: {precision: 100%}\n",
            "c.yaml:4: measure.precision: ",
            ["1%", "0.01", "100%"],
        ),
        (
            SMALL + "measure: {precision: fine}\n",
            "c.yaml:4: measure.precision: ",
            ["1%", "0.01", "'fine'"],
        ),
        (
            SMALL + "measure: {precision: 1%, repeats: 7}\n",
            "c.yaml:4: measure.precision: ",
            ["`repeats`"],
        ),
        (
            SMALL + "measure: {precision: 1%, cache: cold}\n",
            "c.yaml:4: measure.precision: ",
            ["`cold`"],
        ),
        (
            PROFILED + "measure: {precision: 1%, cache: context}\n",
            "c.yaml:4: measure.precision: ",
            ["`context`"],
        ),
        *(
            (
                SMALL.replace("{bundled: quickstart}", source) + "measure: {cache: context}\n",
                "c.yaml:2: sources[0]: ",
                ["measure.cache: context", "profile"],
            )
            for source in (
                "{bundled: quickstart}",
                "{tree: v}",
                _MODEL,
            )
        ),
        (
            PROFILED + "measure: {cache: context}\nsampling: {tolerance: 5%}\n",
            "c.yaml:5: sampling: ",
            ["measure.cache: context"],
        ),
        (SMALL + "measure: {repeats: [9, 3]}\n", "c.yaml:4: measure.repeats: ", ["[9, 3]"]),
        (SMALL + "measure: {repeats: [0, 3]}\n", "c.yaml:4: measure.repeats[0]: ", ["1", "0"]),
        (
            SMALL + "measure: {cache: hot}\n",
            "c.yaml:4: measure.cache: ",
            ["warm", "cold", "context", "'hot'"],
        ),
        (
            SMALL + "measure: {aic_metrics: [Pipe]}\n",
            "c.yaml:4: measure.aic_metrics[0]: ",
            ["PipeUtilization", "ArithmeticUtilization", "'Pipe'"],
        ),
        (
            SMALL + "measure: {aic_metrics: [Memory, L2Cache]}\n",
            "c.yaml:4: measure.aic_metrics: ",
            ["PipeUtilization"],
        ),
        (SMALL + "operators: []\n", "c.yaml:4: operators: ", []),
        (SMALL + "operators: some\n", "c.yaml:4: operators: ", ["all", "[Add, MatMulV3]"]),
        (SMALL + "operators: [all, Add]\n", "c.yaml:4: operators: ", ["all"]),
        (SMALL + "operators: [none.py]\n", "c.yaml:4: operators[0]: ", ["none.py"]),
        (SMALL + "operators:\n- Add\n- Add\n", "c.yaml:6: operators[1]: ", ["'Add'"]),
        (SMALL + "operators: [../Add]\n", "c.yaml:4: ", ["kernel type", "'_'", "'+'"]),
        (SMALL.replace("[{bundled: quickstart}]", "[]"), "c.yaml:2: sources: ", []),
        (
            SMALL.replace("[{bundled: quickstart}]", "quickstart"),
            "c.yaml:2: sources: ",
            ["list", "'quickstart'"],
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{profile: a, tree: b}"),
            "c.yaml:2: sources[0]: ",
            [KINDS],
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{stack: target}"),
            "c.yaml:2: sources[0]: ",
            [KINDS],
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{tree: a, stack: target}"),
            "c.yaml:2: sources[0].stack: ",
            ["profile"],
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{profile: a, stack: other}"),
            "c.yaml:2: sources[0].stack: ",
            ["target", "'other'"],
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{profile: a}, {profile: a, stack: target}"),
            "c.yaml:2: sources[1]: ",
            [],
        ),
        (
            SMALL.replace("quickstart", "../secrets"),
            "c.yaml:2: sources[0].bundled: ",
            ["'../secrets'", "quickstart"],
        ),
        (SMALL + "target: there\n", "c.yaml:4: target: ", ["here"]),
        (SMALL + "target: {torch: 2.9.0}\n", "c.yaml:4: target: ", ["'device'"]),
        (SMALL + "store: ftp://x/y\n", "c.yaml:4: store: ", ["s3://", "file:///"]),
        (SMALL + "store: 'memory:'\n", "c.yaml:4: store: ", ["s3://", "file:///"]),
        (SMALL + "store: s3://me:secret@bucket/x\n", "c.yaml:4: store: ", CREDENTIALS),
        (
            SMALL + "store: s3://bucket/x?endpoint=http://me:secret@host\n",
            "c.yaml:4: store: ",
            CREDENTIALS,
        ),
        (
            SMALL + "store: s3://bucket/x?secret_key=secret\n",
            "c.yaml:4: store: ",
            ["endpoint", "region"],
        ),
        ("campaign: a\n\tbackend: cpu\n", "c.yaml:2: ", ["YAML", "tab"]),
        ("campaign: [a\nbackend: cpu\n", "c.yaml:2: ", ["YAML"]),
        ("a: 1\n---\nb: 2\n", "c.yaml:2: ", ["YAML", "document"]),
        ("campaign: *a\n", "c.yaml:1: ", ["YAML", "alias"]),
        ("campaign: a\nstore: \x00\n", "c.yaml:2: ", ["YAML", "characters"]),
        ("", "c.yaml:1: ", ["empty"]),
        ("- a\n", "c.yaml:1: ", ["campaign, sources"]),
        ("[" * 5000, "c.yaml: ", ["YAML", "nested"]),
    ],
)
def test_invalid_value_is_refused_in_one_line_with_its_position(
    text: str, place: str, data: list[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith(place)
    assert missing(message.removeprefix(place), data) == []
    assert "\n" not in message and "secret@" not in message


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text("\ufeff" + FULL, encoding="utf-8")
    assert load_campaign(file).op_mapping == tmp_path / "op_mapping.yaml"


def test_unreadable_campaign_file_is_refused_by_name(tmp_path: Path) -> None:
    absent = tmp_path / "no.yaml"
    with pytest.raises(BadInput, match="No such file") as caught:
        load_campaign(absent)
    assert str(caught.value).startswith(f"{absent}: ")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"campaign: \xff\xfe\n")
    with pytest.raises(BadInput, match=r"binary\.yaml: .*UTF-8"):
        load_campaign(binary)


@pytest.mark.thorough
@settings(max_examples=150)
@given(st.one_of(st.text(max_size=80), st.text("abc:-[]{},&*!|>'\"#?\n \t1", max_size=80)))
def test_any_text_is_a_campaign_or_bad_input(text: str) -> None:
    try:
        assert read(SMALL + text).name == "a"
    except BadInput as error:
        assert str(error).startswith("c.yaml")


def test_documented_example_is_valid_and_has_every_key() -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "campaign-file.md"
    document = page.read_text(encoding="utf-8")
    example = document.split("```yaml\n")[1].split("```")[0]
    assert read(example).name == "llama-a3-cann85"
    with pytest.raises(BadInput) as caught:
        read(SMALL + "zzzzzz: 1\n")
    known = max(re.findall(r"\w+(?:, \w+)+", str(caught.value)), key=len).split(", ")
    assert len(known) > 10
    assert [key for key in known if f"`{key}" not in document] == []


def test_bad_rows_of_a_profile_source_may_be_skipped() -> None:
    text = SMALL.replace("{bundled: quickstart}", "{profile: p, bad_rows: skip}")
    assert read(text).sources == (ProfileSource(BASE / "p", same_stack=False, skip_bad_rows=True),)
    text = SMALL.replace("{bundled: quickstart}", "{profile: p, bad_rows: refuse}")
    assert read(text).sources == (ProfileSource(BASE / "p", same_stack=False),)
    field = r"^c\.yaml:2: sources\[0\]\.bad_rows: "
    with pytest.raises(BadInput, match=f"{field}.*refuse.*skip.*'drop'"):
        read(SMALL.replace("{bundled: quickstart}", "{profile: p, bad_rows: drop}"))
    with pytest.raises(BadInput, match=f"{field}.*profile"):
        read(SMALL.replace("{bundled: quickstart}", "{bundled: quickstart, bad_rows: skip}"))
