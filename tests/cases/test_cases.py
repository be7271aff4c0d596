"""Small inputs that once gave something wrong: each folder of them gives what is right.

`OPMETER_TEST_CASES` names the folder with these folders. Commands run in this process, as their
scripts `check.py` run them too; only programs that are captured have processes of their own.
"""

import csv
import io
import json
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest

from collector.codec.errors import BadInput
from collector.database import delta
from collector.store.opening import open_store
from tests.lacking import lacking
from tests.unit.jobs.cli.in_process import opmeter_here
from tests.unit.jobs.printed import numbers
from tests.unit.opmeter import made
from tests.unit.opmeter.made import Row, merged
from tests.waiting import wait_for

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_VARIABLE = "OPMETER_TEST_CASES"
_ROOT = Path(__file__).parents[2]
_IMAGE = f"x@sha256:{'a' * 64}"

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Inputs:
    """A folder of inputs, and an empty folder in which commands run. `store` returns the address of
    a database in which Abs and Cast are measured."""

    folder: Path
    here: Path
    store: Callable[[], Path]

    def opmeter(self, *words: object, is_refused: bool = False, code: int = 0) -> Done:
        """Return what a command printed; of a refused one, that is one line that names a cause."""
        done = opmeter_here(*words, cwd=self.here)
        assert done.returncode == (2 if is_refused else code), done.stdout + done.stderr
        assert not is_refused or (done.stdout, len(done.stderr.splitlines())) == ("", 1)
        return done

    def printed_by_check(self) -> list[str]:
        """Return the lines that the folder's check.py prints."""
        (self.here / "work").mkdir()
        out = io.StringIO()
        script = str(self.folder / "check.py")
        with ExitStack() as stack:
            for within in (
                chdir(self.here),
                redirect_stdout(out),
                mock.patch.object(sys, "argv", [script, str(Path(made.__file__).parent)]),
                mock.patch.object(sys, "path", [*sys.path]),
                mock.patch.dict(sys.modules),
                warnings.catch_warnings(),  # its files are closed late
                mock.patch.object(subprocess, "run", _run),
                mock.patch.object(subprocess, "Popen", _started),
                # It changes both.
                mock.patch.object(delta, "CHECKPOINT_EVERY", delta.CHECKPOINT_EVERY),
                mock.patch.object(delta, "publish", delta.publish),
            ):
                stack.enter_context(within)
            warnings.simplefilter("ignore")
            runpy.run_path(script, run_name="__main__")
        return out.getvalue().splitlines()


_real_run, _real_start = subprocess.run, subprocess.Popen


def _run(words: Sequence[str], **options: Any) -> Any:
    """Run a command of a script: `opmeter` in this process."""
    if words[0] != "opmeter":
        return _real_run(words, **options)
    proxy = {name: text for name, text in options.get("env", {}).items() if name == "http_proxy"}
    return opmeter_here(*words[1:], cwd=Path.cwd(), **proxy)


def _started(words: Sequence[str], **options: Any) -> Any:
    return _Command(words[1:]) if words[0] == "opmeter" else _real_start(words, **options)


class _Command:
    """A process of `opmeter` that a script starts; the command runs when its output is read."""

    returncode: int | None = None

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        done = opmeter_here(*self._words, cwd=Path.cwd())
        self.returncode = done.returncode
        return (done.stdout + done.stderr).encode(), None


@pytest.fixture(scope="module")
def cases() -> Path:
    """The folder with the folders of inputs; the test is skipped if there is none."""
    if not (folder := os.environ.get(_VARIABLE)):
        lacking(f"inputs by others are not part of the project: set {_VARIABLE} to their folder")
    return Path(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that `opmeter run` made."""
    here = tmp_path_factory.mktemp("store")
    (here / "rows").mkdir()
    columns = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types"
    for kernel, out in (("Abs", "FLOAT"), ("Cast", "DT_BF16")):
        row = f"128,FLOAT,ND,128,{out},ND"
        (here / "rows" / f"{kernel}.csv").write_text(f"{columns},Output Formats\n{row}\n")
    (here / "campaign.yaml").write_text(
        "campaign: small\nsources: [{tree: rows}]\nbackend: cpu\nstore: store\n"
        "measure: {budget_s: 0.01, repeats: [3, 3]}\nlimits: {memory_gb: 2}\n"
    )
    locks = {"OPMETER_LOCKS": str(here / "locks")}
    done = opmeter_here("run", here / "campaign.yaml", cwd=here, **locks)
    assert done.returncode == 0, done.stdout + done.stderr
    return here / "store"


def npu_ts(given: Inputs) -> None:
    """Starts of kernels keep their digits, as numbers as in texts."""
    number, text = (
        given.opmeter("trace", "to-csv", given.folder / f"{name}.json").stdout
        for name in ("number", "text")
    )
    assert number == text and "461.222" in number


def impossible_durations(given: Inputs) -> None:
    """A launch of 3.4 s before the next one of its stream is left out by name."""
    command = ("trace", "to-csv", "--by-kernel", "k", given.folder / "trace.json")
    assert "gemm_a" in given.opmeter(*command).stderr
    assert _launches(given.here / "k") == {("gemm_a", "8,16;16,32"): (3, 10.0)}


def merged_ranks(given: Inputs) -> None:
    """Kernels have the shapes of their own rank's operators, or the file is refused."""
    command = ("trace", "to-csv", "--by-kernel")
    refused = given.opmeter(*command, "k", given.folder / "trace.json", is_refused=True)
    assert "External id 5" in refused.stderr
    given.opmeter(*command, "s", given.folder / "sglang_merged.json")
    assert _launches(given.here / "s") == {
        ("add_a", "16,64;16,64"): (2, 2.0),
        ("gemm_a", "16,32;32,64"): (2, 10.0),
        ("mul_a", "4;4"): (1, 1.0),
    }


def _launches(folder: Path) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the launches and the mean duration of each row of a folder of kernels."""
    found = {}
    for file in folder.iterdir():
        for row in csv.DictReader(io.StringIO(file.read_text())):
            case = (row["kernel"], row["input_shapes"])
            found[case] = (int(row["launches"]), float(row["mean_us"]))
    return found


def bad_json(given: Inputs) -> None:
    for name in ("after.json", "nan.json"):
        file = given.folder / name
        assert name in given.opmeter("trace", "to-csv", file, is_refused=True).stderr


def devices(given: Inputs) -> None:
    printed = given.opmeter("trace", "to-csv", given.folder / "trace.json").stdout
    assert [row["device"] for row in csv.DictReader(io.StringIO(printed))] == ["0", "1"]


def other_traces(given: Inputs) -> None:
    given.opmeter("trace", "to-csv", given.folder / "jax.json", is_refused=True)
    printed = given.opmeter("trace", "to-csv", given.folder / "torch1_10.json").stdout
    (row,) = csv.DictReader(io.StringIO(printed))
    assert (row["name"], row["duration_us"]) == ("gemm_a", "3")


def lost_head(given: Inputs) -> None:
    for name, lost in (("a", {"8", "10"}), ("b", {"6", "10"})):
        (capture,) = (given.folder / name).iterdir()
        printed = given.opmeter("capture", "check", given.folder / name).stdout
        (line,) = (text for text in printed.splitlines() if str(capture) in text)
        assert lost <= set(numbers(line.replace(str(capture), "")))


def verl(given: Inputs) -> None:
    """Ranks repeat, so that each line names its folder; two have no rows."""
    captures = sorted(map(str, given.folder.rglob("*_ascend_pt")))
    printed = given.opmeter("capture", "check", given.folder / "out", code=1).stdout
    lines = [line for line in printed.splitlines() if "_ascend_pt" in line]
    named = [[one for one in captures if f"{one}:" in line] for line in lines]
    assert sorted(named) == [[one] for one in captures]


def gpu_traces(given: Inputs) -> None:
    """Traces of GPUs are named with the command that reads them."""
    for name, command in (
        ("a", ("capture", "check")),
        ("b", ("capture", "check")),
        ("a", ("tree", "parse", "--database-path", "tree", "--profile")),
    ):
        said = given.opmeter(*command, given.folder / name, is_refused=True).stderr
        assert "trace to-csv" in said and "--by-kernel" in said
        (file,) = (given.folder / name).iterdir()
        given.opmeter("trace", "to-csv", file, "--by-kernel", name)
        assert _launches(given.here / name)


def own_profiler(given: Inputs) -> None:
    """The profiler of a program is left alone, and opmeter reports it."""
    path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
    environ = {"PATH": path, "PYTHONPATH": str(_ROOT), "HOME": str(given.here)}
    started = {}
    for script in ("own", "own_whole", "own_late"):
        command = ["capture", "run", "--output", f"P_{script}", "--steps", "2"]
        command += ["--", "python", str(given.folder / f"{script}.py")]
        started[script] = subprocess.Popen(
            [sys.executable, "-m", "jobs.cli", *command],
            cwd=given.here,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    printed = {}
    for script, process in started.items():
        printed[script], _ = process.communicate(timeout=900)
        assert process.returncode == 0, printed[script]
        assert {"program ended well", "profiles itself"} <= set(
            re.findall("program ended well|profiles itself", printed[script])
        )
    assert "n events 180" in printed["own_late"]
    for name in ("own_trace.json", "own_whole.json"):
        assert json.loads((given.here / name).read_text())["traceEvents"]


def instances(given: Inputs) -> None:
    """An instance whose start timed out or failed gets a stop too."""
    script = given.folder / "server.py"
    with _served(script, 3, 200) as slow, _served(script, 0, 503) as failing:
        urls = [f"http://127.0.0.1:{port}" for port, _ in (slow, failing)]
        given.opmeter("capture", "serve", *urls, "--seconds", "0.1", "--limit-s", "1", code=1)
    for _, process in (slow, failing):
        printed, _ = process.communicate(timeout=60)
        assert "/stop_profile" in printed


@contextmanager
def _served(script: Path, start_s: int, code: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """An instance: its port, and its process, which prints the requests that it received."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(script), *map(str, (port, start_s, code, 0, 200))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(answers)
        yield port, process
    finally:
        process.terminate()


def slow_server(given: Inputs) -> None:
    lines = given.printed_by_check()
    codes = {}
    for line in lines:
        answered = re.match(r"(\w+) +rc (\d+) +([\d.]+)s +(\w*) +\w* *\|", line)
        if answered is None:
            continue
        mode, code, took_s, hangs = answered.groups()
        codes[mode] = int(code)
        assert float(took_s) < 20 and not hangs and "Traceback" not in line  # with two requests
        assert "'GET'" not in line and "\\x1b" not in line
    assert len(codes) == 15 and codes.pop("ok") == 0 and set(codes.values()) == {1}
    (userinfo,) = (line for line in lines if line.startswith("userinfo"))
    (proxy,) = (line for line in lines if line.startswith("env proxy"))
    assert "TOPSECRET" not in "".join(lines) and userinfo.startswith("userinfo 2 ")
    assert lines[lines.index(userinfo) + 1] == lines[lines.index(proxy) + 1] == " []"


def kueue_quota(given: Inputs) -> None:
    outcomes: dict[str, list[str]] = {}
    for line in given.printed_by_check():
        if line.startswith("## "):
            outcomes[line] = []
        elif outcomes:
            outcomes[list(outcomes)[-1]].append(line.strip())
    failed = {name for name, of in outcomes.items() if "False" in of}
    assert len(outcomes) == 5 and failed == set(outcomes) - {"## enough"}


def communication_json(given: Inputs) -> None:
    exact, twice = (
        given.opmeter("comm", "--profile", given.folder / name).stdout.splitlines()
        for name in ("exact", "twice")
    )
    assert not any("left out" in line for line in (*exact, *twice))
    reduced = [[line for line in of if "hcom_allReduce_ 1 time" in line] for of in (exact, twice)]
    assert len(reduced[0]) == 1 and reduced[0] == reduced[1]


def sites(given: Inputs) -> None:
    command = ("launch", given.folder / "campaign.yaml", "--site", given.folder / "nv.yaml")
    more = ("--dry-run", "--image", _IMAGE, "--store", "file:///store")
    said = given.opmeter(*command, *more, is_refused=True).stderr
    assert "nv.yaml:3" in said and "nvidia.com/gpu" in said


def model(given: Inputs) -> None:
    """The suggested command runs as printed: it is refused for what it would install alone."""
    command = ("model", "show", given.folder / "q35.json", "--layout", "tp=4,ep=4")
    _, _, suggested = given.opmeter(*command, is_refused=True).stderr.partition(" opmeter ")
    reached = mock.Mock(side_effect=BadInput("reached"))
    with mock.patch("collector.engine.engine_process.install_serving", reached):
        done = given.opmeter(*shlex.split(suggested), is_refused=True)
    assert "reached" in done.stderr and str(given.folder / "q35.json") in suggested


def samples(given: Inputs) -> None:
    parse = ("tree", "parse", "--database-path", "tree", "--profile")
    said = given.opmeter(*parse, given.folder / "jsonshapes", is_refused=True).stderr
    assert "Input Data Types" in said and "Input Formats" in said
    for name in ("renamed", "dp"):
        given.opmeter("tree", "parse", "--database-path", name, "--profile", given.folder / name)
        assert [file.name for file in (given.here / name).glob("*.csv")] == ["MatMulV2.csv"]


def query_ambiguous(given: Inputs) -> None:
    lines = given.printed_by_check()
    for line, ends in zip(lines, ("10 to 50 us", "10 to 90 us", "11 to 77 us"), strict=True):
        assert f"2, of {ends}" in line
    rows = [Row("Abs", [(64, 64)], [(64, 64)], 10.0, "FLOAT")]
    rows += [Row("Abs", [(64, 64)], [(64, 64)], 50.0)]
    version = merged(rows, open_store(str(given.here / "store")))
    (many,) = version.query_many({"kernel_type": ["Abs"], "Input Shapes": ["64,64"]})["warnings"]
    words = ("query", "Abs", "--shape", "64,64", "--root", "store", "--json")
    (found,) = json.loads(given.opmeter(*words).stdout)
    for warning in (str(version.query("Abs", [(64, 64)])), str(many), found["warnings"]):
        assert "2, of 10 to 50 us" in warning


def query_file(given: Inputs) -> None:
    """The kernel of a row decides, and an unknown column is named."""
    root = given.store()
    words = ("query", "Cast", "--root", root, "--json", "--file")
    (cast,) = json.loads(given.opmeter(*words[:-1], "--shape", "128").stdout)
    for header in ("Kernel Type", "kernel_type"):
        lines = [f"{header},Input Shapes,Colour", "MatMulV3,128,", "Nonsense,128,", "Abs,128,"]
        (given.here / "rows.csv").write_text("\n".join([*lines, ",128,red", ""]))
        done = given.opmeter(*words, "rows.csv", code=1)
        *others, absolute, empty = json.loads(done.stdout)
        assert [one["value_us"] for one in others] == [None, None]
        assert [one["reason"] for one in others] == ["no kernel", "no kernel"]
        assert absolute["value_us"] != cast["value_us"] == empty["value_us"]
        assert "Colour" in done.stderr


def outliers(given: Inputs) -> None:
    """Each mean from which more than a few per cent of the repeats are dropped has a warning."""
    lines = given.printed_by_check()
    assert len(lines) == 12
    for line in lines:
        (accepted, repeats) = map(int, re.findall(r"accepted (\d+)/(\d+)", line)[0])
        _, _, warned = line.partition("warnings ")
        assert accepted > 0.95 * repeats or "outliers" in warned


def delta_foreign(given: Inputs) -> None:
    """`db verify` names what another tool wrote, and after the next merge readers see our rows."""
    lines = given.printed_by_check()
    ours = [6.0, 7.0, 8.0, 9.0]

    def after(start: str) -> tuple[list[float], str]:
        """Return the durations that a reader sees, and what was printed with them."""
        (at,) = (number for number, line in enumerate(lines) if line.startswith(start))
        found = re.search(r"\((\d+), (\[[^\]]*\])\)", lines[at])
        assert found is not None
        return json.loads(found[2]), lines[at]

    for start, rows in (
        ("clean", ours[:2]),
        ("after a merge (commit 3)", ours[:3]),
        ("after merge 4", ours),
        ("after merge (", ours[:3]),
        ("commit 3 without projection", ours),
    ):
        assert after(start)[0] == rows
    verdicts = [line for line in lines if re.match(r" *(db )?verify |\(\d+, \[6.0\]\)", line)]
    verdicts += [after("checkpoint without adds")[1]]
    assert len(verdicts) == 4
    for line in verdicts:
        assert re.search(r"\(1, \[.*[1-9]\d* problem", line), line


def report_links(given: Inputs) -> None:
    """A folder with links is refused, and nothing outside of it is written or deleted."""
    victim, out = given.here / "victim", given.here / "out"
    victim.mkdir()
    out.mkdir()
    (victim / "important").write_text("precious")
    (victim / "bashrc").write_text("rc")
    (out / "link").symlink_to("../victim")
    (out / "index.html.new").symlink_to("../victim/bashrc")
    (out / ".opmeter-report.json").write_text('{"opmeter":"x","files":["link/important"]}')
    given.opmeter("report", "db", "-o", "out", "--root", given.store(), is_refused=True)
    assert {file.name: file.read_text() for file in victim.iterdir()} == {
        "important": "precious",
        "bashrc": "rc",
    }


def recording_bomb(given: Inputs) -> None:
    given.opmeter("model", "list")  # imports
    began_s = time.process_time()
    file = given.folder / "bomb.json.gz"
    assert "bomb.json.gz" in given.opmeter("model", "show", file, is_refused=True).stderr
    assert time.process_time() - began_s < 1


def config_ignored(given: Inputs) -> None:
    first, *others = given.printed_by_check()
    assert " rc 0 " in first
    named = ("torch_dtype", "torch_dtype", *["quantization_config"] * 2, "hidden_act")
    for line, key in zip(others, named, strict=True):
        assert " rc 2 " in line and key in line


CHECKS = MappingProxyType(
    {
        "npu-ts": npu_ts,
        "impossible-durations": impossible_durations,
        "merged-ranks": merged_ranks,
        "bad-json": bad_json,
        "devices": devices,
        "other-traces": other_traces,
        "lost-head": lost_head,
        "verl": verl,
        "gpu-traces": gpu_traces,
        "own-profiler": own_profiler,
        "instances": instances,
        "slow-server": slow_server,
        "kueue-quota": kueue_quota,
        "communication-json": communication_json,
        "sites": sites,
        "model": model,
        "samples": samples,
        "query-ambiguous": query_ambiguous,
        "query-file": query_file,
        "outliers": outliers,
        "delta-foreign": delta_foreign,
        "report-links": report_links,
        "recording-bomb": recording_bomb,
        "config-ignored": config_ignored,
    }
)


def test_every_folder_has_a_check(cases: Path) -> None:
    assert {folder.name for folder in cases.iterdir() if folder.is_dir()} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_folder_gives_what_is_right(
    name: str, cases: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def stored() -> Path:
        root: Path = request.getfixturevalue("store")
        return root

    CHECKS[name](Inputs(cases / name, tmp_path, stored))
