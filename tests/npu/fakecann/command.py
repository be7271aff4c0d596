"""The command line of the fake msprof: the options of the real one in CANN 8.5, no others."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.npu.fakecann.columns import GROUPS

_OPTIONS = frozenset(
    (
        *("--output", "--storage-limit", "--application", "--environment", "--ascendcl"),
        *("--ai-core", "--aic-mode", "--aic-freq", "--aic-metrics", "--l2", "--model-execution"),
        *("--task-time", "--task-memory", "--runtime-api", "--ge-api", "--hccl", "--aicpu"),
        *("--msproftx", "--type", "--sys-hardware-mem", "--sys-hardware-mem-freq"),
        *("--sys-profiling", "--sys-pid-profiling", "--sys-io-profiling"),
        *("--sys-interconnection-profiling", "--dvpp-profiling", "--instr-profiling"),
        *("--host-sys", "--host-sys-pid", "--host-sys-usage", "--sys-devices", "--sys-period"),
        *("--export", "--parse", "--query", "--clear", "--analyze", "--rule", "--iteration-id"),
        *("--model-id", "--summary-format", "--python-path", "--delay", "--duration"),
        *("--dynamic", "--pid"),
    )
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command line. `application` is empty for an export, and for what `analyzes` one."""

    output: Path
    application: tuple[str, ...] = ()
    metrics: str = "PipeUtilization"
    level: str = "l1"
    analyzes: bool = False
    kind: str = "text"


class Refused(Exception):
    """A command line that msprof refuses."""


def parse(arguments: Sequence[str]) -> Command:
    """Parse options up to the first other word, then the application. Raises Refused."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if name not in _OPTIONS or not equals:
            raise Refused(f"unrecognized option '{name}'")
        options[name] = value
    application = tuple(rest) or tuple(shlex.split(options.get("--application", "")))
    if "--output" not in options:
        raise Refused("--output is required")
    modes = [options.get(name) == "on" for name in ("--export", "--analyze", "--parse")]
    if [bool(application), *modes].count(True) != 1:
        raise Refused("an application, --export=on, --parse=on or --analyze=on is required")
    metrics = options.get("--aic-metrics", "PipeUtilization")
    if metrics not in GROUPS:
        raise Refused(f"--aic-metrics={metrics} is not one of {', '.join(GROUPS)}")
    level = options.get("--task-time", "l1")
    if level not in ("on", "off", "l0", "l1", "l2"):
        raise Refused(f"--task-time={level} is not one of on, off, l0, l1, l2")
    kind = options.get("--type", "text")
    if kind not in ("text", "db"):
        raise Refused(f"--type={kind} is not one of text, db")
    return Command(Path(options["--output"]), application, metrics, level, any(modes[1:]), kind)
