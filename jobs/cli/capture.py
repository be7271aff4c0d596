"""`opmeter capture`: profiles of running programs, and whether they can be used."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.capture.injection import Injection, StepsBy
from collector.capture.settings import (
    DYNAMIC_FILE,
    CaptureSettings,
    CoreMetrics,
    Export,
    Level,
    dynamic_config,
)
from collector.codec.errors import BadInput, OpmeterError, file_errors
from collector.codec.text import share_of
from collector.store.atomic import write_whole
from jobs.cli.options import OperatorsOption, RootOption, VersionOptions, WorkloadOptions
from jobs.cli.terminal import print_json, say, say_lines

if TYPE_CHECKING:
    from collector.capture.verdict import RankVerdict

_UNUSABLE = 1
_BEFORE = 4  # passes in which the capture finds the module, and begins


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What a capture records of a step, and how many steps: fields of `CaptureSettings`."""

    steps: Annotated[int, typer.Option(help="steps to record", min=1)] = 1
    warmup: Annotated[int, typer.Option(help="steps to drop before them", min=0)] = 1
    shapes: Annotated[bool, typer.Option(help="record shapes")] = True
    stack: Annotated[bool, typer.Option("--stack", help="record Python's stacks")] = False
    modules: Annotated[bool, typer.Option("--modules", help="record torch modules")] = False
    flops: Annotated[bool, typer.Option("--flops", help="count FLOPs of operators")] = False
    memory: Annotated[bool, typer.Option("--memory", help="record allocations")] = False
    activities: Annotated[
        str, typer.Option(help="what an NPU records: CPU (the host), NPU (the device), or both")
    ] = "CPU,NPU"
    level: Annotated[Level, typer.Option(help="how much an NPU records")] = Level.LEVEL1
    metrics: Annotated[CoreMetrics, typer.Option(help="counters of an NPU's cores")] = (
        CoreMetrics.PIPE_UTILIZATION
    )
    export: Annotated[Export, typer.Option(help="files of an NPU's analysis")] = Export.TEXT
    marks: Annotated[
        bool, typer.Option("--marks", help="record mstx marks of an NPU's program")
    ] = False
    l2_cache: Annotated[bool, typer.Option("--l2-cache", help="record an NPU's L2 cache")] = False
    op_attr: Annotated[
        bool, typer.Option("--op-attr", help="record attributes of kernels, with --export db")
    ] = False
    record_op_args: Annotated[
        bool, typer.Option("--record-op-args", help="record arguments of an NPU's operators")
    ] = False
    gc_threshold_ms: Annotated[
        float | None,
        typer.Option(help="record garbage collections of at least this time, in ms", min=0),
    ] = None
    data_simplification: Annotated[
        bool, typer.Option("--data-simplification", help="remove raw data after the analysis")
    ] = False


def check_command(
    folder: Annotated[Path, typer.Argument(help="folder or archive of a capture, of any tool")],
    *,
    root: RootOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Judge a capture: rows, shapes, steps and ranks that are missing.

    The exit code is 1 if less than half of the rows of a rank have shapes. If there is a database,
    a line reports how much of the capture it has.

    \b
    Example:
      opmeter capture check prof/qwen
    """
    from collector.capture.verdict import verdicts

    found = verdicts(folder)
    if as_json:
        print_json(
            [
                {
                    "rank": one.rank,
                    "folder": str(one.folder),
                    "rows": one.rows,
                    "rows_with_inputs": one.rows_with_inputs,
                    "share": round(one.share, 4),
                    "steps": one.steps,
                    "without_inputs": dict(one.without_inputs),
                    "without_kernel": dict(one.without_kernel),
                    "completed": sum(log.rows for log in one.completed),
                    "unpaired": [note for log in one.completed for note in log.unpaired],
                    "faults": list(one.faults),
                }
                for one in found
            ]
        )
        return 0 if all(one.is_usable for one in found) else _UNUSABLE
    return _say_verdicts(folder, found, root)


def _say_verdicts(folder: Path, found: Sequence["RankVerdict"], root: str | None = None) -> int:
    """Print verdicts, what a database has of them and the next command; return the exit code."""
    say_lines(map(str, found))
    if not all(one.is_usable for one in found):
        return _UNUSABLE
    say_lines(_next_lines(folder, root))
    return 0


def _next_lines(folder: Path, root: str | None) -> Iterator[str]:
    from collector.database.commits import find_head
    from collector.store.opening import DEFAULT_ROOT, command_on
    from jobs.cli.look_up import find_covered
    from jobs.cli.opening import open_root
    from jobs.planning.coverage import CoverageStatus, share

    if find_head(open_root(root or DEFAULT_ROOT)) is None:
        if root:
            yield f"no database at {root}"
        run = command_on(root or DEFAULT_ROOT, "opmeter run CAMPAIGN.yaml")
        yield f"next: {run}, with sources: [{{profile: {folder}}}]"
        return
    try:
        covered = find_covered(WorkloadOptions(profile=folder), VersionOptions(root=root))
    except OpmeterError as error:  # several versions, or the capture has nothing to look up
        yield f"not compared with the database: {error}"
    else:
        exact = share(covered.cases, CoverageStatus.EXACT).time
        yield f"the database has {share_of(exact, 1)} of the time of these cases: {covered.place}"
    plan = f"opmeter coverage --budget 1h --profile {shlex.quote(str(folder))}"
    yield f"next: {command_on(root or DEFAULT_ROOT, plan)}"


def capture_run_command(
    command: Annotated[list[str], typer.Argument(help="program with its arguments, after `--`")],
    *,
    output: Annotated[Path, typer.Option(help="folder for the capture")] = Path("prof"),
    recorded: CaptureOptions,
    skip_first: Annotated[int, typer.Option(help="steps before the first round", min=0)] = 0,
    wait: Annotated[int, typer.Option(help="steps of a round before its warmup", min=0)] = 0,
    repeat: Annotated[int, typer.Option(help="rounds of wait, warmup and steps", min=1)] = 1,
    total_steps: Annotated[
        int | None,
        typer.Option(help="steps of the program, to check that the rounds fit", min=1),
    ] = None,
    trial: Annotated[bool, typer.Option(help="judge a trial of two steps first")] = True,
    max_bytes: Annotated[
        int | None,
        typer.Option(help="largest capture of a rank, in bytes  [default: the disk]", min=1),
    ] = None,
    worker_name: Annotated[
        str | None,
        typer.Option(help="name of this machine in the folders of runs  [default: its hostname]"),
    ] = None,
    by: Annotated[StepsBy, typer.Option(help="what ends a step")] = StepsBy.AUTO,
    after_s: Annotated[
        float, typer.Option(help="time without a step until a window is recorded, in s", min=0)
    ] = 180.0,
    seconds: Annotated[float, typer.Option(help="length of the window, in s", min=0.1)] = 5.0,
    backend: Annotated[
        str | None, typer.Option(help="npu, cuda or cpu  [default: the first available]")
    ] = None,
    calls: Annotated[
        bool, typer.Option(help="log the arguments of custom operators, which profilers drop")
    ] = True,
    static_kernels: Annotated[
        bool,
        typer.Option("--static-kernels", help="the program runs kernels compiled for its shapes"),
    ] = False,
    analyse: Annotated[bool, typer.Option(help="analyse the capture in the program")] = True,
) -> int:
    """Run a program with a capture inside, and judge the capture when it ends.

    The program is not changed: a step of an optimizer ends a step, in inference a call of the
    outermost module, and without either a window of time is recorded. Children of the program,
    such as those of torchrun, are captured too, each to its rank. The capture begins only if a
    trial of two steps can be used, and ends before it has more than --max-bytes.

    The exit code is that of the program, whatever became of the capture: `opmeter capture check`
    has one for that.

    \b
    Examples:
      opmeter capture run --steps 3 -- python train.py --epochs 1
      opmeter capture run --output prof/tp2 -- torchrun --nproc-per-node 2 train.py
    """
    from collector.capture.program import run_captured
    from collector.capture.verdict import verdicts

    options = asdict(recorded) | {"trial": trial, "max_bytes": max_bytes, "analyse": analyse}
    options |= {"skip_first": skip_first, "wait": wait, "repeat": repeat}
    options |= {"total_steps": total_steps, "calls": calls, "static_kernels": static_kernels}
    options |= {"worker_name": worker_name}
    injection = Injection(str(output.absolute()), options, backend, by, after_s, seconds)
    code = run_captured(command, injection)
    try:
        _say_verdicts(output, verdicts(output))
    except BadInput as error:
        say(f"{error}: no step ended before the program did; see --by and --after-s", err=True)
    return code


def pass_command(
    case: Annotated[
        str, typer.Argument(help="case of an operator with `is_pass`, as in `opmeter measure`")
    ],
    *,
    operators: OperatorsOption = None,
    output: Annotated[Path, typer.Option(help="folder for the capture")] = Path("prof"),
    steps: Annotated[int, typer.Option(help="passes to record", min=1)] = 3,
) -> int:
    """Capture the operators of a pass of your own, on the CPU.

    The folder is a source of a campaign, for the operators; its file pass.jsonl is another one, for
    the pass as a whole. `opmeter step FOLDER` explains the one by the others.

    \b
    Example:
      opmeter capture pass "MyDecoder 4,1;4,128 i64;f32" --operators my_ops.py --output prof/four
    """
    from collector.capture.program import run_captured
    from collector.capture.verdict import verdicts
    from collector.model.demand import MissedCase
    from collector.ops.own import find_operator
    from jobs.cli.measure import check_measurable
    from jobs.cli.opening import declare_operators
    from jobs.cli.query import written_cases
    from jobs.planning.captured_pass import PASS_FILE
    from jobs.planning.sources import completed_records
    from opmeter.misses import MissLog
    from opmeter.written_cases import records_of

    files = declare_operators(operators)
    (record,) = completed_records(records_of(written_cases([case], None, {})))
    check_measurable([record], "cpu")
    op = find_operator(record.kernel_type)
    if op is None or not op.is_pass:
        what = "expected an operator of --operators with is_pass=True"
        raise BadInput(f"{record.kernel_type}: {what}")
    file = next(one for one in files if one.hash == op.file)
    log = MissLog(output / PASS_FILE)
    log.add_case(
        MissedCase(record.kernel_type, {**record.cells, **record.extra}, "captured", 1, 1.0)
    )
    with file_errors(output, "created"):
        output.mkdir(parents=True)
    log.write()
    options = {"steps": steps, "trial": False}
    injection = Injection(str(output.absolute()), options, "cpu", StepsBy.FORWARD)
    repeated = ("-m", "collector.capture.passes", file.path, str(log.path), str(steps + _BEFORE))
    if code := run_captured([sys.executable, *repeated], injection):
        return code
    return _say_verdicts(output, verdicts(output))


def dynamic_command(
    folder: Annotated[Path, typer.Argument(help="folder that dynamic_profile.init was given")],
    *,
    output: Annotated[
        Path | None, typer.Option(help="folder for the capture  [default: FOLDER/capture]")
    ] = None,
    recorded: CaptureOptions,
    analyse: Annotated[bool, typer.Option(help="analyse the capture in the program")] = False,
) -> None:
    """Start a capture in a running program that calls dynamic_profile.step of torch_npu.

    The command writes the validated profiler_config.json; the capture begins with the next step.

    \b
    Example:
      opmeter capture dynamic profiler_config_path --steps 2
    """
    from collector.codec.canonical import readable_json

    if not folder.is_dir():
        raise BadInput("expected the folder that dynamic_profile.init was given", path=folder)
    settings = CaptureSettings(output or folder / "capture", analyse=analyse, **asdict(recorded))
    settings.check()
    path = folder / DYNAMIC_FILE
    with file_errors(path, "written"):
        write_whole(path, readable_json(dynamic_config(settings)))
    say(f"wrote {path}: the next step begins a capture in {settings.folder}")


def serve_command(
    urls: Annotated[
        list[str] | None, typer.Argument(help="http://HOST:PORT of every instance")
    ] = None,
    *,
    selector: Annotated[
        str, typer.Option(help="labels of the instances' pods, such as app=vllm,role=decode")
    ] = "",
    namespace: Annotated[
        str | None,
        typer.Option(help="namespace of the pods  [default: that of this pod or context]"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="port of the pods  [default: the one that they declare]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="seconds to record", min=0.1)] = 5.0,
    limit_s: Annotated[
        float,
        typer.Option(help="limit of each request, in seconds; a stop analyses the capture", min=1),
    ] = 1800.0,
    sglang: Annotated[bool, typer.Option("--sglang", help="the instances are of SGLang")] = False,
    output: Annotated[str, typer.Option(help="folder on the instances (SGLang)")] = "",
    proxies: Annotated[
        bool, typer.Option("--proxies", help="use http_proxy, https_proxy and no_proxy")
    ] = False,
) -> int:
    """Profile serving instances: vLLM, vLLM-Ascend or SGLang.

    Name every prefill, decode and data-parallel instance, or select their pods: a proxy forwards
    nothing. If one of them does not start within 30 s, all that may have started are stopped; a
    signal stops all, too. The exit code is 1 then, and 128 plus the signal. OPMETER_API_KEY is the
    API key of the instances.

    \b
    Examples:
      opmeter capture serve http://prefill-0:8000 http://decode-0:8000 --seconds 3
      opmeter capture serve --selector app=vllm --namespace serving
    """
    from collector.capture.serving import capture_instances

    if bool(urls) == bool(selector):
        raise BadInput("expected the URLs of instances, or --selector")
    if not urls:
        urls = _urls_of_pods(selector, namespace, port)
    found = capture_instances(
        urls, seconds, limit_s=limit_s, is_sglang=sglang, folder=output, uses_proxies=proxies
    )
    say_lines(map(str, found))
    if not any(one.fault for one in found):
        say("next, where the instances write: opmeter capture check FOLDER")
    return _UNUSABLE if any(one.fault for one in found) else 0


def _urls_of_pods(selector: str, namespace: str | None, port: int | None) -> list[str]:
    """Return the addresses of the pods that a selector finds, and print them."""
    from jobs.kube.cluster import Cluster
    from jobs.objects.serving_pods import serving_urls

    cluster = Cluster.connect(namespace)
    urls = serving_urls(cluster.pods(selector), port)
    if not urls:
        raise BadInput(f"no running pod of {selector!r} is in namespace {cluster.namespace}")
    say_lines(f"{pod}: {url}" for pod, url in urls.items())
    return list(urls.values())


def analyse_command(
    folder: Annotated[Path, typer.Argument(help="folder of captures of torch_npu")],
    *,
    limit_s: Annotated[float, typer.Option(help="limit of each card, in seconds", min=1)] = 3600.0,
) -> int:
    """Analyse captures that were only collected, card by card. It requires torch_npu and CANN.

    The raw data remain. The exit code is 1 if a card was not analysed.

    \b
    Example:
      opmeter capture analyse prof/qwen
    """
    from collector.capture.analysis import analyse_captures
    from collector.profiles.discovery import find_profiles

    found = []
    for one in analyse_captures(folder, limit_s):
        say(one)
        found.append(one)
    if not found:
        find_profiles([folder])  # raises for a folder without any capture
        say(f"every capture is analysed: opmeter capture check {folder}")
    return _UNUSABLE if any(one.fault for one in found) else 0


COMMANDS: dict[str, Callable[..., int | None]] = {
    "run": capture_run_command,
    "pass": pass_command,
    "check": check_command,
    "analyse": analyse_command,
    "dynamic": dynamic_command,
    "serve": serve_command,
}
