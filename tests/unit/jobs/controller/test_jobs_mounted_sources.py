"""The files that a campaign in a cluster may make the controller read, and that none of their
content is reported."""

import csv
import errno
import io
import logging
import os

import pytest

from collector.codec.errors import BadInput
from collector.model.stack import Stack
from collector.model.vocabulary import BASE_CELLS
from collector.store.in_memory import MemoryStore
from collector.store.probe import Probe
from jobs.controller import current_plan
from jobs.controller.controller import Controller, frames_of
from jobs.controller.current_plan import check_mounted
from jobs.objects.applied_campaign import config_map, config_map_name
from jobs.objects.deployment import Deployment
from tests.fixtures.profiles.variants import LAYOUTS, ProfileRow, profile_bytes
from tests.unit.jobs.fake_cluster import FakeCluster

pytestmark = pytest.mark.fast

SECRET = "eyJhbGciOiJSUzI1NiIs"
SERVED = "layout: {tp: 1}, serving: {concurrency: [1], input: 8, output: 2}"
DEPLOYMENT = Deployment("bench", "here/collector:1", "here/controller:1", "memory:")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "sources"
    made.mkdir()
    (tmp_path / "token").write_text(SECRET)
    return made


def refused(path, folders):
    """Return the error; its path is the part at fault."""
    with pytest.raises(BadInput) as error:
        check_mounted(path, folders)
    return error.value


def words(error):
    """Return the message without its path."""
    return str(error).removeprefix(f"{error.path}: ")


# Where --------------------------------------------------------------------------------------------


def test_path_outside_of_the_source_folders_is_refused_without_a_hint_of_its_existence(folder):
    there, nowhere = folder.parent / "token", folder.parent / "nowhere"
    for folders in ((), (folder,)):
        (message,) = {words(refused(path, folders)) for path in (there, nowhere)}
        assert (str(folder) if folders else "--sources-folder") in message


@pytest.mark.parametrize("path", ["../token", "a/../../token", "../sources-of-another/x.csv"])
def test_a_path_does_not_lead_out_of_its_folder(folder, path):
    other = folder.parent / "sources-of-another"
    other.mkdir()
    (other / "x.csv").write_text("x")
    (folder / "a").mkdir()
    error = refused(folder / path, [folder])
    assert error.path == folder / path and str(folder) in words(error)


def test_a_link_counts_by_where_it_leads(folder):
    (folder / "file.csv").write_text("x")
    check_mounted(folder / "file.csv", [folder.parent / "none", folder])
    (folder / "inside.csv").symlink_to("file.csv")
    (folder / "outside.csv").symlink_to("../token")
    (folder / "up").symlink_to("..")
    for name in ("outside.csv", "up/token", "up"):
        error = refused(folder / name, [folder])
        assert error.path == folder / name and str(folder) in words(error)
    # A reader of a file also reads the files next to it, and a reader of a folder reads all in it.
    for name in ("inside.csv", "."):
        error = refused(folder / name, [folder])
        assert error.path in (folder / "outside.csv", folder / "up")
        assert str(folder) in words(error)
    for name in ("outside.csv", "up"):
        (folder / name).unlink()
    check_mounted(folder / "inside.csv", [folder])
    check_mounted(folder, [folder])


def test_folder_mounted_from_a_config_map_is_read(folder):
    (folder / "..2026").mkdir()
    (folder / "..2026" / "op_mapping.yaml").write_text("x")
    (folder / "..data").symlink_to("..2026")
    (folder / "op_mapping.yaml").symlink_to("..data/op_mapping.yaml")
    check_mounted(folder / "op_mapping.yaml", [folder])


def test_further_files_of_a_run_are_checked_too(folder):
    output = folder / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text("x")
    check_mounted(output / "kernel_details.csv", [folder])
    (output.parent / "profiler_info_0.json").symlink_to("../../token")
    error = refused(output / "kernel_details.csv", [folder])
    assert error.path == output.parent / "profiler_info_0.json" and str(folder) in words(error)


def test_files_next_to_a_symlink_and_next_to_its_target_are_checked(folder):
    for name in ("near", "far"):
        (folder / name).mkdir()
    (folder / "far" / "kernel_details.csv").write_text("x")
    (folder / "near" / "kernel_details.csv").symlink_to("../far/kernel_details.csv")
    check_mounted(folder / "near" / "kernel_details.csv", [folder])
    for name in ("near", "far"):  # a reader opens it by the name that it receives
        other = folder / name / "operator_details.csv"
        other.symlink_to("../../token")
        error = refused(folder / "near" / "kernel_details.csv", [folder])
        assert error.path == other and str(folder) in words(error)
        other.unlink()


def test_run_folder_of_a_symlink_is_checked(folder):
    run = folder / "rank0_ascend_pt"
    run.mkdir()
    (folder / "op_summary_1.csv").write_text("x")
    (run / "op_summary_1.csv").symlink_to("../op_summary_1.csv")
    check_mounted(run / "op_summary_1.csv", [folder])
    os.mkfifo(run / "profiler_info.json")
    error = refused(run / "op_summary_1.csv", [folder])
    assert error.path == run / "profiler_info.json" and "regular" in words(error)


def is_absent(error, path, folder):
    """Whether an error is about a path that does not exist: inside the folder, and of no kind."""
    text = words(error)
    return error.path == path and str(folder) not in text and "regular" not in text


def test_names_that_lead_nowhere_are_refused(folder):
    (folder / "circle").symlink_to("circle")
    assert is_absent(refused(folder / "circle", [folder]), folder / "circle", folder)
    error = refused(folder, [folder])
    assert error.path == folder / "circle" and os.strerror(errno.ELOOP) in words(error)
    assert is_absent(refused(folder / ("x" * 300), [folder]), folder / ("x" * 300), folder)
    assert refused(folder / "a\0b", [folder]).path == ascii("a\0b")


def test_symlink_out_of_the_folder_does_not_reveal_its_target(folder):
    message = set()
    for name in ("../token", "../nowhere"):
        (folder / "x").symlink_to(name)
        error = refused(folder, [folder])
        assert error.path == folder / "x" and str(folder) in words(error)
        message.add(str(error))
        (folder / "x").unlink()
    assert len(message) == 1


def test_pipe_is_not_a_source(folder):
    os.mkfifo(folder / "op_mapping.yaml")
    for path in (folder / "op_mapping.yaml", folder):
        error = refused(path, [folder])
        assert error.path == folder / "op_mapping.yaml" and "regular" in words(error)


def test_missing_file_is_named(folder):
    assert is_absent(refused(folder / "x.csv", [folder]), folder / "x.csv", folder)
    (folder / "dangling.csv").symlink_to("gone.csv")
    error = refused(folder, [folder])
    assert error.path == folder / "dangling.csv" and os.strerror(errno.ENOENT) in words(error)


# What is reported ---------------------------------------------------------------------------------


class Message:
    """A campaign that names files, one reconciliation of it by a controller, and all output."""

    def __init__(self, folder, caplog, *lines):
        text = "campaign: small\nbackend: cpu\ntarget: {device: CPU_x_2t, torch: 2.13.0+cpu}\n"
        self.cluster = FakeCluster(MemoryStore())
        self.cluster.apply(
            config_map("small", text + "\n".join(lines), {"site": "cpu"}, DEPLOYMENT)
        )
        self.cluster.has_answered(config_map_name("small"), Stack("CPU_x_2t", "2.13.0+cpu"))
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            Controller(
                self.cluster,
                lambda applied: self.cluster.store,
                probe_store=lambda store: Probe(True, "honest"),
                folders=[folder],
            ).reconcile()
        self.reasons = self.cluster.reasons()
        logged = [caplog.handler.format(record) for record in caplog.records]
        self.words = "\n".join([*map(str, self.cluster.reported.values()), *logged])


def rows(*lines):
    out = io.StringIO()
    csv.writer(out).writerows(lines)
    return out.getvalue()


def table():
    data = profile_bytes("K5", [ProfileRow(duration="1.000")])
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


COLUMNS = LAYOUTS["K5"][1].split(",")
KERNEL_DETAILS = {
    "alone": SECRET,
    "a row": rows(table()[0], [SECRET]),
    "quoted": f'"{SECRET}\n"{SECRET}',
    **{
        column: rows(
            table()[0],
            [text if name == column else cell for name, cell in zip(COLUMNS, row, strict=True)],
        )
        for column in COLUMNS
        if column not in ("Type", "Name")  # names of running things, which the plan holds
        for text in (f"{SECRET}.é",)
        for row in table()[1:]
    },
    "Type": rows(table()[0], [f"{SECRET}/x", *table()[1][1:]]),
}
TREE = {
    "alone": SECRET,
    **{
        column: rows(BASE_CELLS, [f"{SECRET}.é" if name == column else "" for name in BASE_CELLS])
        for column in BASE_CELLS
    },
    "a column": rows([*BASE_CELLS, "Extra"], [SECRET]),
}
ENTRIES = (
    *("kernel_type: {}/x", "query_mode: {}", "category: {}", "zero_cost: {}", "sub_kernels: {}"),
    *("tc_input_count: {}", "accepted_miss: [{}]", "kernel_type: !!int {}", "composite: {}"),
)
OP_MAPPINGS = (
    *("{}", "'{}", "[{}", "{{{}", "*{}", "!{} a", "!!{} a", "!{}!b c", "%{}", "@{}", "- {}"),
    *("a: !!timestamp {}", "a: !!bool {}", "a: !!float {}", "a: b: {}", "{}: 1\n{}: 2", "\t{}"),
    *("operator_mappings: {}", "operator_mappings: [{}]", "operator_mappings: {{aten.x: {}}}"),
    *(f"operator_mappings: {{{{aten.x: {{{{{entry}}}}}}}}}" for entry in ENTRIES),
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["op_mapping.yaml", "tree"])
def test_contents_of_an_op_mapping_are_never_announced(folder, caplog, name):
    (folder / "run").mkdir()
    (folder / "run" / "kernel_details.csv").write_text(rows(*table()))
    named = [f"sources: [{{profile: {folder}/run}}]", f"op_mapping: {folder}/op_mapping.yaml"]
    if name == "tree":
        named = [f"sources: [{{tree: {folder}}}]"]
        (folder / "Add.csv").write_text(rows(BASE_CELLS, [""] * len(BASE_CELLS)))
    for text in OP_MAPPINGS:
        (folder / "op_mapping.yaml").write_text(text.format(SECRET, SECRET))
        found = Message(folder, caplog, *named)
        assert found.reasons == ["BadInput"], (text, found.words)
        assert "op_mapping.yaml" in found.words
        assert SECRET not in found.words, text


@pytest.mark.parametrize("column", KERNEL_DETAILS)
def test_contents_of_a_profile_are_never_announced(folder, caplog, column):
    (folder / "kernel_details.csv").write_text(KERNEL_DETAILS[column])
    found = Message(folder, caplog, f"sources: [{{profile: {folder}}}]")
    assert set(found.reasons) & {"BadInput", "Planned"}
    assert "InternalError" not in found.reasons and SECRET not in found.words


def test_contents_of_files_next_to_a_profile_are_never_announced(folder, caplog):
    (folder / "kernel_details.csv").write_text(rows(*table()).replace("Add", "FusedInferAttention"))
    for name in ("operator_details.csv", "profiler_info.json", "opmeter-tree.json"):
        (folder / name).write_text(f'{{"runtime": "{SECRET}", "{SECRET}": {SECRET}')
    assert SECRET not in Message(folder, caplog, f"sources: [{{profile: {folder}}}]").words


MODELS = (
    f'"{SECRET}"',
    f'["{SECRET}"]',
    f"{SECRET}",
    f'{{"model_type": "{SECRET}"}}',
    f'{{"model_type": "llama", "hidden_size": "{SECRET}"}}',
    f'{{"model_type": "llama", "sliding_window": "{SECRET}"}}',
    f'{{"{SECRET}": 1}}',
)


@pytest.mark.parametrize("text", MODELS)
def test_contents_of_a_model_config_are_never_announced(folder, caplog, text):
    (folder / "config.json").write_text(text)
    found = Message(folder, caplog, f"sources: [{{model: {folder}/config.json, {SERVED}}}]")
    assert found.reasons == ["BadInput"], found.words
    assert "config.json" in found.words and SECRET not in found.words


def test_model_outside_of_the_folders_is_not_opened(folder, caplog):
    (folder.parent / "config.json").write_text(f'"{SECRET}"')
    for name in ("config.json", "nowhere.json"):
        path = folder.parent / name
        found = Message(folder, caplog, f"sources: [{{model: {path}, {SERVED}}}]")
        assert found.reasons == ["BadInput"]
        assert f"{path}: " in found.words and str(folder) in found.words
        assert SECRET not in found.words


@pytest.mark.parametrize("column", TREE)
def test_contents_of_a_tree_are_never_announced(folder, caplog, column):
    (folder / "Add.csv").write_text(TREE[column])
    found = Message(folder, caplog, f"sources: [{{tree: {folder}}}]")
    assert set(found.reasons) & {"BadInput", "Planned"}
    assert "InternalError" not in found.reasons and SECRET not in found.words


def test_unknown_operator_is_refused_without_listing_those_of_a_source(folder, caplog):
    (folder / f"{SECRET}.csv").write_text(rows(BASE_CELLS, [""] * len(BASE_CELLS)))
    requested = f"operators: [{SECRET[:-1]}A]", f"sources: [{{tree: {folder}}}]"
    found = Message(folder, caplog, *requested)
    assert found.reasons == ["BadInput"] and SECRET not in found.words


def test_internal_error_is_announced_without_its_message(folder, caplog, monkeypatch):
    def read_state(*_):
        try:
            int(SECRET)
        except ValueError as error:
            raise LookupError(SECRET) from error

    monkeypatch.setattr(current_plan.lifecycle, "read_state", read_state)
    found = Message(folder, caplog, "sources: [{bundled: quickstart}]")
    assert found.reasons == ["InternalError"] and "LookupError" in found.words
    assert "ValueError" in found.words and "in read_state" in found.words
    assert SECRET not in found.words


def test_traceback_summary_has_only_frames_and_error_types():
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        reported = frames_of(error)
    assert reported.endswith("ValueError") and __file__ in reported
