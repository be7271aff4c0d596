"""A campaign file: what each key means, and the one line that names each mistake."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.errors import BadInput
from collector.plan import Limits, MeasureSettings, ShardSettings
from jobs.campaign.campaign_file import Campaign, Target, campaign_from_text, load_campaign
from jobs.campaign.density import DensitySettings
from jobs.campaign.quality import QualitySettings
from jobs.campaign.runtime_values import RuntimeValues
from jobs.campaign.source_kinds import BundledSource, ProfileSource, TreeSource

pytestmark = pytest.mark.fast

BASE = Path("/campaigns")
SMALL = "campaign: a\nsources: [{bundled: quickstart}]\nbackend: cpu\n"
_SERVING = "{concurrency: [1], input: 8, output: 8}"
_MODEL = f"{{model: qwen3-32b, layout: {{tp: 1}}, serving: {_SERVING}}}"
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
        density=None,
        runtime=RuntimeValues((1024, 4096)),
        op_mapping=BASE / "op_mapping.yaml",
        store="s3://perf/opmeter",
    )


def test_what_is_left_out_has_a_default() -> None:
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


def test_words_and_numbers_may_be_said_in_other_ways() -> None:
    campaign = read(
        SMALL + "operators: all\ntarget: here\nmeasure: {repeats: 7, budget_s: 1e-1}\nstore: data\n"
    )
    assert (campaign.operators, campaign.target) == (None, None)
    assert campaign.measure.repeat_count == 7
    assert campaign.measure.budget_s == 0.1
    assert campaign.store == "/campaigns/data"


@pytest.mark.parametrize("precision", ["2%", "0.02", "2.0%"])
def test_a_precision_is_a_share_of_the_mean_and_lets_there_be_more_repeats(precision) -> None:
    measure = read(SMALL + f"measure: {{precision: {precision}}}\n").measure
    assert (measure.precision, measure.min_repeats, measure.max_repeats) == (0.02, 3, 1000)
    bounded = read(SMALL + "measure: {precision: 1%, repeats: [5, 50]}\n").measure
    assert (bounded.min_repeats, bounded.max_repeats) == (5, 50)


def test_a_density_is_a_tolerance_and_at_most_a_share() -> None:
    assert read(SMALL + "density: {tolerance: 5%}\n").density == DensitySettings(0.05, 0.25)
    told = read(SMALL + "density: {tolerance: 0.1, share: 40%}\n").density
    assert told == DensitySettings(0.1, 0.4)


def test_an_operator_is_known_by_the_name_of_its_cases() -> None:
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
def test_a_store_that_may_hold_a_secret_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(SMALL + f"store: {address}\n")
    assert str(caught.value).startswith("c.yaml:4: store: ")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + "opertors: all\n", "c.yaml:4: unknown key 'opertors'; did you mean 'operators'?"),
        (
            SMALL + "measure:\n  budget: 1\n",
            "c.yaml:5: measure: unknown key 'budget'; did you mean 'budget_s'?",
        ),
        (
            SMALL + "limits: {zzz: 1}\n",
            "c.yaml:4: limits: unknown key 'zzz'; known here: case_s, memory_gb",
        ),
        (SMALL + "<<: {devices: 2}\n", "c.yaml:4: unknown key '<<'; known here: campaign, "),
        (SMALL + "? [a]\n: 1\n", "c.yaml:4: a key must be a plain word"),
        (SMALL + "backend: npu\n", "c.yaml:4: the key 'backend' stands here twice"),
        ("campaign: a\nbackend: cpu\n", "c.yaml:1: the key 'sources' is missing"),
        (
            SMALL.replace(": a\n", ": Llama_3\n"),
            "c.yaml:1: campaign 'Llama_3': lower-case letters, digits and '-' are wanted, "
            "at most 40",
        ),
        (
            SMALL.replace(": a\n", ":\n"),
            "c.yaml:1: campaign: a text is wanted, nothing came",
        ),
        (
            SMALL.replace(": a\n", ": [a]\n"),
            "c.yaml:1: campaign: a text is wanted, a list came",
        ),
        (
            SMALL.replace("cpu", "gpu"),
            "c.yaml:3: backend: npu, cuda or cpu is wanted, 'gpu' came; did you mean 'npu'?",
        ),
        (
            SMALL + "update: missing\n",
            "c.yaml:4: update: all, missing-only or precision is wanted, 'missing' came; did you "
            "mean 'missing-only'?",
        ),
        (
            SMALL + "devices: 0\n",
            "c.yaml:4: devices: a whole number of at least 1 is wanted, 0 came",
        ),
        (
            SMALL + "devices: -4\n",
            "c.yaml:4: devices: a whole number of at least 1 is wanted, -4 came",
        ),
        (
            SMALL + "devices: 1.5\n",
            "c.yaml:4: devices: a whole number of at least 1 is wanted, '1.5' came",
        ),
        (
            SMALL + "devices: '8'\n",
            "c.yaml:4: devices: a whole number of at least 1 is wanted, the text '8' came",
        ),
        (
            SMALL + "devices: {}\n",
            "c.yaml:4: devices: a whole number of at least 1 is wanted, a mapping came",
        ),
        (
            SMALL + "measure: {budget_s: -1}\n",
            "c.yaml:4: measure.budget_s: a number above 0 is wanted, -1 came",
        ),
        (
            SMALL + "density: {share: 40%}\n",
            "c.yaml:4: density: the key 'tolerance' is missing",
        ),
        (
            SMALL + "density: {tolerance: 0}\n",
            "c.yaml:4: density.tolerance: a share like 1% or 0.01 is wanted, 0 came",
        ),
        (
            SMALL + "update: all\ndensity: {tolerance: 5%}\n",
            "c.yaml:5: density: `density` measures what is missing, in rounds: `update: all` is "
            "not for it",
        ),
        (
            SMALL + "update: precision\n",
            "c.yaml:4: update: `update: precision` and `quality: {budget_device_h: HOURS}` are "
            "wanted together",
        ),
        (
            SMALL + "quality: {budget_device_h: 2}\n",
            "c.yaml:1: `update: precision` and `quality: {budget_device_h: HOURS}` are wanted "
            "together",
        ),
        (
            SMALL + "quality: {repeat_share: 2%}\n",
            "c.yaml:4: quality.repeat_share: a number from 0 to 1 is wanted, '2%' came",
        ),
        (
            SMALL + "quality: {repeat_share: 2}\n",
            "c.yaml:4: quality.repeat_share: a number from 0 to 1 is wanted, 2 came",
        ),
        (
            SMALL + "limits: {memory_gb: nan}\n",
            "c.yaml:4: limits.memory_gb: a number above 0 is wanted, nan came",
        ),
        (
            SMALL + "shards: {target_s: soon}\n",
            "c.yaml:4: shards.target_s: a number above 0 is wanted, 'soon' came",
        ),
        (
            SMALL + "shards: 12\n",
            "c.yaml:4: shards: a mapping with the keys target_s, session_s is wanted, '12' came",
        ),
        (
            SMALL + "measure: {precision: 100%}\n",
            "c.yaml:4: measure.precision: a share like 1% or 0.01 is wanted, 100% came",
        ),
        (
            SMALL + "measure: {precision: fine}\n",
            "c.yaml:4: measure.precision: a share like 1% or 0.01 is wanted, 'fine' came",
        ),
        (
            SMALL + "measure: {precision: 1%, repeats: 7}\n",
            "c.yaml:4: measure.precision: a precision chooses the number of repeats, and `repeats` "
            "fixes it",
        ),
        (
            SMALL + "measure: {precision: 1%, cache: cold}\n",
            "c.yaml:4: measure.precision: a precision is told by launches in a row, and `cold` "
            "flushes between",
        ),
        (
            PROFILED + "measure: {precision: 1%, cache: context}\n",
            "c.yaml:4: measure.precision: a precision is told by launches in a row, and `context` "
            "runs others between",
        ),
        *(
            (
                SMALL.replace("{bundled: quickstart}", source) + "measure: {cache: context}\n",
                "c.yaml:2: sources[0]: `measure.cache: context` runs before a case what ran before "
                "it: a profile is wanted, in which launches have an order",
            )
            for source in (
                "{bundled: quickstart}",
                "{tree: v}",
                _MODEL,
            )
        ),
        (
            PROFILED + "measure: {cache: context}\ndensity: {tolerance: 5%}\n",
            "c.yaml:5: density: is about numbers of a case alone; `measure.cache: context` "
            "measures others",
        ),
        (
            SMALL + "measure: {repeats: [9, 3]}\n",
            "c.yaml:4: measure.repeats: [fewest, most] or one whole number is wanted, [9, 3] came",
        ),
        (
            SMALL + "measure: {repeats: [0, 3]}\n",
            "c.yaml:4: measure.repeats[0]: a whole number of at least 1 is wanted, 0 came",
        ),
        (
            SMALL + "measure: {cache: hot}\n",
            "c.yaml:4: measure.cache: warm, cold or context is wanted, 'hot' came",
        ),
        (
            SMALL + "measure: {aic_metrics: [Pipe]}\n",
            "c.yaml:4: measure.aic_metrics[0]: PipeUtilization, ArithmeticUtilization, ",
        ),
        (
            SMALL + "measure: {aic_metrics: [Memory, L2Cache]}\n",
            "c.yaml:4: measure.aic_metrics: of several groups PipeUtilization must be one: "
            "it gives the duration",
        ),
        (
            SMALL + "operators: []\n",
            "c.yaml:4: operators: the list is empty, at least one entry is wanted",
        ),
        (
            SMALL + "operators: some\n",
            "c.yaml:4: operators: all, or a list of kernel types like [Add, MatMulV3], is wanted",
        ),
        (SMALL + "operators:\n- Add\n- Add\n", "c.yaml:6: operators[1]: 'Add' is listed twice"),
        (
            SMALL + "operators: [../Add]\n",
            "c.yaml:4: a kernel type is a name: letters, digits, '_', '.', '+', '-' are wanted",
        ),
        (
            SMALL.replace("[{bundled: quickstart}]", "[]"),
            "c.yaml:2: sources: the list is empty, at least one entry is wanted",
        ),
        (
            SMALL.replace("[{bundled: quickstart}]", "quickstart"),
            "c.yaml:2: sources: a list is wanted, 'quickstart' came",
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{profile: a, tree: b}"),
            "c.yaml:2: sources[0]: one of profile, tree, bundled, cases, collectives, model is "
            "wanted, profile and tree came",
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{stack: target}"),
            "c.yaml:2: sources[0]: one of profile, tree, bundled, cases, collectives, model is "
            "wanted, none of them came",
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{tree: a, stack: target}"),
            "c.yaml:2: sources[0].stack: only a profile says on which stack it was taken",
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{profile: a, stack: other}"),
            "c.yaml:2: sources[0].stack: target is wanted, 'other' came",
        ),
        (
            SMALL.replace("{bundled: quickstart}", "{profile: a}, {profile: a, stack: target}"),
            "c.yaml:2: sources[1]: this source is listed twice",
        ),
        (
            SMALL.replace("quickstart", "../secrets"),
            "c.yaml:2: sources[0].bundled: '../secrets' is not the name of a bundled sample, "
            "as quickstart is",
        ),
        (
            SMALL + "target: there\n",
            "c.yaml:4: target: here, or a mapping like {device: NAME, torch: 2.9.0}, is wanted",
        ),
        (SMALL + "target: {torch: 2.9.0}\n", "c.yaml:4: target: the key 'device' is missing"),
        (
            SMALL + "store: ftp://x/y\n",
            "c.yaml:4: store: s3://bucket/prefix, file:///folder or a folder is wanted",
        ),
        (
            SMALL + "store: 'memory:'\n",
            "c.yaml:4: store: s3://bucket/prefix, file:///folder or a folder is wanted",
        ),
        (
            SMALL + "store: s3://me:secret@bucket/x\n",
            "c.yaml:4: store: an address holds no credentials; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or mount the file AWS_SHARED_CREDENTIALS_FILE names",
        ),
        (
            SMALL + "store: s3://bucket/x?endpoint=http://me:secret@host\n",
            "c.yaml:4: store: an address holds no credentials; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or mount the file AWS_SHARED_CREDENTIALS_FILE names",
        ),
        (
            SMALL + "store: s3://bucket/x?secret_key=secret\n",
            "c.yaml:4: store: s3:// takes endpoint and region, and nothing else; credentials come "
            "from the environment",
        ),
        (
            "campaign: a\n\tbackend: cpu\n",
            "c.yaml:2: not YAML: a tab stands where blanks are wanted; indent with blanks",
        ),
        ("campaign: [a\nbackend: cpu\n", "c.yaml:2: not YAML: "),
        (
            "a: 1\n---\nb: 2\n",
            "c.yaml:2: not YAML: expected a single document in the stream, "
            "but found another document",
        ),
        ("campaign: *a\n", "c.yaml:1: not YAML: found undefined alias"),
        ("campaign: a\nstore: \x00\n", "c.yaml:2: not YAML: special characters are not allowed"),
        ("", "c.yaml:1: the file is empty"),
        ("- a\n", "c.yaml:1: a mapping with the keys campaign, sources, "),
        ("[" * 5000, "c.yaml: not YAML that can be read: nested too deeply"),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(text)
    said = str(caught.value)
    assert said.startswith(message)
    assert "\n" not in said
    if not message.endswith(" "):
        assert said == message


def test_a_file_is_read_with_paths_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text("\ufeff" + FULL, encoding="utf-8")
    assert load_campaign(file).op_mapping == tmp_path / "op_mapping.yaml"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    with pytest.raises(BadInput, match="the campaign file cannot be read: No such file") as caught:
        load_campaign(missing)
    assert str(caught.value).startswith(f"{missing}: ")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"campaign: \xff\xfe\n")
    with pytest.raises(BadInput, match=r"binary.yaml: a campaign file in UTF-8 is wanted"):
        load_campaign(binary)


@settings(max_examples=150)
@given(st.one_of(st.text(max_size=80), st.text("abc:-[]{},&*!|>'\"#?\n \t1", max_size=80)))
def test_any_text_is_a_campaign_or_bad_input(text: str) -> None:
    try:
        assert read(SMALL + text).name == "a"
    except BadInput as error:
        assert str(error).startswith("c.yaml")


def test_the_documented_example_is_a_campaign_and_no_key_is_left_out() -> None:
    document = (Path(__file__).parents[4] / "docs" / "campaign.md").read_text(encoding="utf-8")
    example = document.split("```yaml\n")[1].split("```")[0]
    assert read(example).name == "llama-a3-cann85"
    with pytest.raises(BadInput) as caught:
        read(SMALL + "zzzzzz: 1\n")
    known = str(caught.value).split("known here: ")[1].split(", ")
    assert [key for key in known if f"`{key}" not in document] == []


def test_a_profile_may_have_its_bad_rows_skipped() -> None:
    text = SMALL.replace("{bundled: quickstart}", "{profile: p, bad_rows: skip}")
    assert read(text).sources == (ProfileSource(BASE / "p", same_stack=False, skip_bad_rows=True),)
    text = SMALL.replace("{bundled: quickstart}", "{profile: p, bad_rows: refuse}")
    assert read(text).sources == (ProfileSource(BASE / "p", same_stack=False),)
    with pytest.raises(BadInput, match="refuse or skip is wanted, 'drop' came"):
        read(SMALL.replace("{bundled: quickstart}", "{profile: p, bad_rows: drop}"))
    with pytest.raises(BadInput, match="only of a profile"):
        read(SMALL.replace("{bundled: quickstart}", "{bundled: quickstart, bad_rows: skip}"))
