"""Start processes of the product by a fork of one that has imported torch already.

`import torch` costs more than most of what a test starts a process for. `install()` replaces
`subprocess.Popen` by a class that starts `python -m MODULE`, for the modules in `_PROGRAMS`,
through a server: a process that has imported what these modules import, and has done nothing else.
All other commands, and everything within `real_starts()`, are started as usual.

The started process is like any other: its own id, a child of the process that started it (which
waits for it, and can watch its end), the environment, folder, descriptors, session and process
group that were requested. It differs in what a program can only do before it begins: variables that
are read when a library is loaded have the server's values, except OMP_NUM_THREADS, and
`sitecustomize.py` runs after these imports.

The server is a child of the process that requests others, and forks them as its own siblings
(CLONE_PARENT of clone(2)). A started process that may start others has a separate server, forked
before anything else.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import itertools
import json
import os
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_ROOT = Path(__file__).resolve().parents[1]
_MSPROF = str(_ROOT / "tests/npu/fakecann/tools/profiler/bin/msprof")

# Modules that may be started by a fork: True if they start such processes themselves.
_PROGRAMS = {
    "collector.comm.agent": True,
    "collector.comm.rank_process": True,
    "collector.replay.session": False,
    "collector.worker": True,
    "jobs.cli": True,
    "tests.npu.expert_bench": True,
    "tests.npu.graph_rows": False,
    "tests.npu.kernel_window": False,
    "tests.npu.meta_rows": False,
    "tests.npu.model_sample": False,
    "tests.npu.replay_rows": False,
    "tests.npu.wrong_calls": False,
    _MSPROF: True,
}
_IMPORTED = (
    "boto3",
    "pyarrow.parquet",
    "rich.table",
    "scipy.stats",
    "torch.distributed.run",
    "torch.profiler",
    "typer",
    "yaml",
    "collector.replay.loop",
    "collector.worker.assignment",
    "jobs.cli.opening",
    "jobs.cli.run",
    "jobs.executor.local_run",
)
# Read when Python or a library starts: each set of their values has a separate server.
_AT_START = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONHOME", "TORCHDYNAMO_DISABLE")
# torchrun's: it has imported the name Popen.
_ELASTIC = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
_SHIM = "keys_shim.so"  # in LD_PRELOAD of the processes with the fake CANN
_CANN = "libcannstub.so"
_MOST_SERVERS = 3
_GET_TID_ADDRESS = 40  # PR_GET_TID_ADDRESS of linux/prctl.h
_CLONE = 56 if platform.machine() == "x86_64" else 220  # of asm/unistd.h
# CLONE_PARENT, CLONE_CHILD_CLEARTID and CLONE_CHILD_SETTID of linux/sched.h
_FLAGS = 0x8000 | 0x200000 | 0x1000000 | signal.SIGCHLD
_ARGUMENTS_START_AT = 45  # of the fields of /proc/PID/stat, counted from the state
_ROOM_FOR_ARGUMENTS = "." * 3000
_LENGTH = struct.Struct("!I")
_MOST_DESCRIPTORS = 32
_MOST_NUMBER = 4096

_RealPopen = subprocess.Popen
_PARAMETERS = tuple(inspect.signature(_RealPopen._execute_child).parameters)[3:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_Key = tuple[str | None, ...]


class _Servers:
    """The servers of this process, each started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[_Key, socket.socket] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment: Mapping[str, str] = dict(os.environ)  # before a test changes it
        self.is_off = False

    def own(self, connection: socket.socket, environment: Mapping[str, str]) -> None:
        """Use the server at the other end, and none of the forked ones."""
        self.environment = environment
        self._connections = {_key(environment): connection}

    def start(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Return the id of the started process; it is a child of this one."""
        body = json.dumps(request).encode("utf-8", "surrogateescape")
        with self._lock:
            connection = self._connection(request["environment"])
            socket.send_fds(connection, [_LENGTH.pack(len(body))], list(descriptors))
            connection.sendall(body)
            (pid,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
        return int(pid)

    def end(self) -> None:
        """End the servers, and wait for them."""
        while self._connections:
            self._connections.popitem()[1].close()
        while self._processes:
            self._processes.pop().wait()

    def _connection(self, environment: Mapping[str, str]) -> socket.socket:
        key = _key(environment)
        connection = self._connections.pop(key, None)
        if connection is None:
            is_own = key == _key(self.environment)
            connection, process = _started_server(self.environment if is_own else environment)
            self._processes.append(process)
        self._connections[key] = connection  # the last that was used
        while len(self._connections) > _MOST_SERVERS:
            self._connections.pop(next(iter(self._connections))).close()
        return connection


def _key(environment: Mapping[str, str]) -> _Key:
    return tuple(environment.get(name) for name in _AT_START)


_servers = _Servers()


class ForkedPopen(_RealPopen):  # type: ignore[type-arg]
    """A Popen that starts the product's modules by a fork of the server."""

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        given = dict(zip(_PARAMETERS, rest, strict=True))
        request = _request(args, executable, given)
        if request is None:
            super()._execute_child(args, executable, *rest)  # type: ignore[misc]
            return
        try:
            standard = [
                end if end != -1 else own
                for own, end in enumerate(
                    (given["p2cread"], given["c2pwrite"], given["errwrite"]),
                )
            ]
            passed = sorted(given["pass_fds"])
            self.pid = _servers.start(request | {"passed": passed}, [*standard, *passed])
            self._child_created = True
        finally:
            self._close_pipe_fds(*(given[name] for name in _PIPES))  # type: ignore[attr-defined]


def install() -> None:
    """Start the product's modules of this process by forks."""
    if sys.platform == "linux" and not os.environ.get("OPMETER_REAL_STARTS"):
        subprocess.Popen = ForkedPopen  # type: ignore[misc]


def uninstall() -> None:
    """End the servers; processes are started as usual afterwards."""
    subprocess.Popen = _RealPopen  # type: ignore[misc]
    _servers.end()


@contextlib.contextmanager
def real_starts() -> Iterator[None]:
    """Start every process within it as usual: for tests of the start itself."""
    before, _servers.is_off = _servers.is_off, True
    try:
        yield
    finally:
        _servers.is_off = before


def _request(args: Any, executable: Any, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request to the server; None if the process needs a real start."""
    if _servers.is_off or isinstance(args, str | bytes | os.PathLike) or given["shell"]:
        return None
    words = [os.fsdecode(word) for word in args]
    if os.fsdecode(executable or words[0]) != words[0]:
        return None
    options, program, arguments = _command(words)
    if program not in _PROGRAMS:
        return None
    if given["preexec_fn"] or given["umask"] != -1 or not given["close_fds"]:
        return None
    if any(given[name] is not None for name in ("gid", "gids", "uid")):
        return None
    given_env = os.environ if given["env"] is None else given["env"]
    return {
        "program": program,
        "arguments": arguments,
        "options": options,
        "words": words,
        "folder": os.path.abspath(os.fsdecode(given["cwd"] or os.curdir)),
        "environment": {os.fsdecode(name): os.fsdecode(text) for name, text in given_env.items()},
        "new_session": bool(given["start_new_session"]),
        "process_group": given["process_group"],
    }


def _command(words: list[str]) -> tuple[list[str], str, list[str]]:
    """Return Python's options, the module or script, and its arguments; "" for other commands."""
    if words[0] == _MSPROF:
        return ["-P"], _MSPROF, words[1:]
    options = list(itertools.takewhile(lambda word: word in ("-P", "-u"), words[1:]))
    rest = words[1 + len(options) :]
    if words[0] != sys.executable or rest[:1] != ["-m"] or len(rest) < 2:
        return [], "", []
    return options, rest[1], rest[2:]


def _started_server(
    environment: Mapping[str, str],
) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    ours, theirs = socket.socketpair()
    with theirs:
        own = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OPENBLAS_NUM_THREADS": "1", **_tunables()}
        process = _RealPopen(
            [
                *(sys.executable, "-P", str(Path(__file__).resolve())),
                *(str(theirs.fileno()), _ROOM_FOR_ARGUMENTS),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**environment, **own},
            pass_fds=[theirs.fileno()],
        )
    return ours, process


def _tunables() -> dict[str, str]:
    from collector.host.stack import CPU_ALLOCATOR

    return CPU_ALLOCATOR


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Start processes until the client is gone. Returns in each of them, with its request."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_DESCRIPTORS)
        if not head:
            os._exit(0)
        head += _exactly(connection, _LENGTH.size - len(head))
        body = _exactly(connection, _LENGTH.unpack(head)[0])
        if (child := _fork_for_parent()) == 0:
            connection.close()
            return json.loads(body.decode("utf-8", "surrogateescape")), descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(_LENGTH.pack(child))


def _fork_for_parent() -> int:
    """Fork; the new process is a child of this one's parent, and not of this one.

    It is os.fork() except for the flag CLONE_PARENT of clone(2). As in glibc's fork, the kernel
    writes the new id where the C library keeps it, which is where it clears it when the process
    ends.
    """
    own_id = ctypes.c_void_p()
    libc = ctypes.PyDLL(None, use_errno=True)
    if libc.prctl(_GET_TID_ADDRESS, ctypes.byref(own_id), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_TID_ADDRESS)")
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    nothing = ctypes.c_void_p()
    # The last two are swapped between architectures; the other of them is not read.
    child = int(libc.syscall(_CLONE, ctypes.c_long(_FLAGS), nothing, nothing, own_id, own_id))
    if child == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return child


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Set the attributes of a started process that can still be set."""
    if request["new_session"]:
        os.setsid()
    if (group := request["process_group"]) is not None and group >= 0:
        os.setpgid(0, group)
    targets = [0, 1, 2, *request["passed"]]
    # Move them first: a target may be the number under which another one was received.
    high = [_above(descriptor, max(targets)) for descriptor in descriptors]
    for descriptor, target in zip(high, targets, strict=True):
        os.dup2(descriptor, target, inheritable=True)
        os.close(descriptor)
    os.chdir(request["folder"])
    before = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(request["environment"])
    added = [os.path.abspath(one) for one in before.split(os.pathsep) if one]
    sys.path[:] = [one for one in sys.path if one not in added]
    mine = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = [os.path.abspath(one) for one in mine.split(os.pathsep) if one]
    if "-P" not in request["options"]:
        sys.path.insert(0, request["folder"])
    if "-u" in request["options"]:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    if threads := os.environ.get("OMP_NUM_THREADS"):
        import torch

        torch.set_num_threads(int(threads))
    for folder in filter(None, mine.split(os.pathsep)):
        if (custom := Path(folder, "sitecustomize.py")).exists():
            runpy.run_path(str(custom), run_name="sitecustomize")
            break
    sys.argv[:] = [request["program"], *request["arguments"]]
    _show_arguments(request["words"])
    if _SHIM in os.environ.get("LD_PRELOAD", ""):
        ctypes.CDLL(_CANN).opmeter_fake_cann_begin()


def _show_arguments(words: Sequence[str]) -> None:
    """Make `/proc/PID/cmdline` show the command that was requested, and empty words after it: tests
    find processes by their commands."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[_ARGUMENTS_START_AT : _ARGUMENTS_START_AT + 2])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, text + bytes(end - start - len(text)), end - start)


def _above(descriptor: int, least: int) -> int:
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least + 1)
    os.close(descriptor)
    return moved


def _companion(environment: Mapping[str, str]) -> socket.socket | None:
    """Fork a server for this process. Returns its connection in the server, None in the process."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        _servers.own(ours, environment)
        subprocess.Popen = ForkedPopen  # type: ignore[misc]
        sys.modules[_ELASTIC].Popen = ForkedPopen  # type: ignore[attr-defined]
        return None
    _show_arguments([__file__])
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    kept = theirs.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, _MOST_NUMBER)
    return theirs


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        if not (part := connection.recv(count - len(parts))):
            raise ConnectionError("the server of processes has ended; its error is above")
        parts += part
    return parts


def _main(connection: socket.socket) -> None:
    gc.disable()
    for name in _IMPORTED:
        importlib.import_module(name)
    if _SHIM in os.environ.get("LD_PRELOAD", ""):
        importlib.import_module("torch_npu")
    gc.freeze()
    gc.enable()
    server: socket.socket | None = connection
    while server is not None:
        request, descriptors = _serve(server)
        _become(request, descriptors)
        starts_others = _PROGRAMS[request["program"]]
        server = _companion(request["environment"]) if starts_others else None
    _finish(_run(request["program"]))


def _run(program: str) -> int:
    """Run a module or script as the main program; return its exit status."""
    try:
        if os.sep in program:
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _finish(status: int) -> NoReturn:
    """End like an interpreter, without freeing every object: that would copy all memory that is
    shared with the server."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
