"""The capture inside a program that knows nothing of it, prepared when the program imports torch.

Where a step ends is found in this order:

    optimizer   a step of the optimizer that steps first, by torch's hook of all optimizers
    forward     a call of the outermost module that the program repeats without training
    time        neither within `after_s`: a window of `seconds`

An error of a capture never reaches the program: it is logged, and the program runs on.
"""

import _thread
import atexit
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary, ref

from collector.capture import own_profilers
from collector.codec.errors import BadInput, OpmeterError

if TYPE_CHECKING:
    from collector.capture.session import CaptureSession

VARIABLE = "OPMETER_CAPTURE"  # of the environment: an `Injection` as JSON
_LOG = logging.getLogger(__name__)
_IMPORTS = "<frozen importlib"  # the file of Python's import system
_PROFILED_S = 1.0  # until a window is tried again while the program profiles itself
_BUSY_S = 0.05  # until a window is tried again that may not begin or end now


class StepsBy(StrEnum):
    """What ends a step of a program that does not report its steps."""

    AUTO = "auto"
    OPTIMIZER = "optimizer"
    FORWARD = "forward"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Injection:
    """A capture for the processes of a program. `options` are the fields of `CaptureSettings`."""

    folder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    by: StepsBy = StepsBy.AUTO
    after_s: float = 180.0
    seconds: float = 5.0

    def to_variable(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_variable(cls, text: str) -> Self:
        """Return the capture of an environment variable. Raises BadInput if it is none."""
        try:
            found = cls(**json.loads(text))
            return cls(**{**asdict(found), "by": StepsBy(found.by)})
        except (TypeError, ValueError) as error:
            raise BadInput(f"{VARIABLE}: expected a capture as JSON, got {error}") from error


def attach() -> None:
    """Prepare the capture that the environment names. Called once in each process."""
    _log_to_stderr()
    try:
        injection = Injection.from_variable(os.environ[VARIABLE])
    except BadInput as error:
        _LOG.error("%s", error)
        return
    if _launches_ranks():
        return  # its children have the variable, too
    _Injected(injection).attach()


def _launches_ranks() -> bool:
    """Return whether this process only starts others, as torchrun does."""
    runs = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate"}
    return "RANK" not in os.environ and _program_of(sys.orig_argv[1:]) in runs


def _program_of(arguments: Sequence[str]) -> str:
    """Return the module or the name of the script that Python's arguments run."""
    following = iter(arguments)
    for one in following:
        if one in ("-m", "-c"):
            return next(following, "") if one == "-m" else ""
        if one in ("-W", "-X"):
            next(following, "")
        elif not one.startswith("-"):
            return os.path.basename(one)
    return ""


class _Injected:
    """The hooks of this process, and the capture that they begin, step and end."""

    def __init__(self, injection: Injection) -> None:
        self._injection = injection
        self._pid = os.getpid()
        self._session: CaptureSession | None = None
        self._is_done = False
        self._is_busy = False  # in the profiler, where a signal may interrupt
        self._by: StepsBy | None = None  # what ends the steps of this program
        self._source: Callable[[], object] = lambda: None  # the optimizer or module that does
        self._calls = WeakKeyDictionary[Any, int]()  # of outermost modules
        self._depth = 0
        self._has_waited = False  # for a profiler of the program
        self._hooks: list[Any] = []
        self._signal = signal.SIGRTMAX - 1
        self._timer: threading.Timer | None = None

    def attach(self) -> None:
        own_profilers.watch()
        by = self._injection.by
        if by in (StepsBy.AUTO, StepsBy.OPTIMIZER):
            self._attach_optimizer()
        if by in (StepsBy.AUTO, StepsBy.FORWARD):
            self._attach_forward()
        if by in (StepsBy.AUTO, StepsBy.TIME):
            self._attach_time()
        atexit.register(self._on_exit)

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to do here: done, or a fork of the process of the hooks."""
        return self._is_done or os.getpid() != self._pid

    @property
    def _is_outside_of_modes(self) -> bool:
        """Whether the capture can enter or leave its own mode of torch here: modes are a stack."""
        from collector.capture.dispatched import modes_of_torch

        return modes_of_torch() == (self._session.modes if self._session else 0)

    def _attach_optimizer(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def ended(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._is_idle:
                return
            if self._by is None and self._is_outside_of_modes:
                self._begin(StepsBy.OPTIMIZER, optimizer)
            elif self._source() is optimizer:
                self._end_step()

        self._hooks.append(register_optimizer_step_post_hook(ended))

    def _attach_forward(self) -> None:
        import torch
        from torch.nn.modules import module as modules

        with_training = self._injection.by is StepsBy.FORWARD

        def entered(module: Any, args: Any) -> None:
            if torch.compiler.is_compiling():
                return  # a constant while it is compiled, so that the program is not changed
            self._depth += 1
            is_training = torch.is_grad_enabled() and module.training
            if self._depth == 1 and (with_training or not is_training) and not self._is_idle:
                self._on_outermost(module)

        def left(module: Any, args: Any, result: Any) -> None:
            if not torch.compiler.is_compiling():
                self._depth = max(0, self._depth - 1)

        self._hooks += [
            modules.register_module_forward_pre_hook(entered),
            modules.register_module_forward_hook(left, always_call=True),
        ]

    def _on_outermost(self, module: Any) -> None:
        """Take the module that was called most often: a step ends where its next call begins."""
        self._calls[module] = calls = self._calls.get(module, 0) + 1
        if self._by is None and calls > 1 and self._is_outside_of_modes:
            self._begin(StepsBy.FORWARD, module)
        elif self._by is StepsBy.FORWARD:
            if calls > self._calls.get(self._source(), 0):
                self._source = ref(module)
            if self._source() is module:
                self._end_step()

    def _attach_time(self) -> None:
        try:
            signal.signal(self._signal, self._on_time)
        except ValueError:
            _LOG.warning("torch was imported by a thread: the capture cannot begin by time")
            return
        self._after(self._injection.after_s)

    def _after(self, seconds: float) -> None:
        """Run `_on_time` later in the main thread, whose launches the dispatcher sees."""
        self._timer = threading.Timer(seconds, _thread.interrupt_main, (self._signal,))
        self._timer.daemon = True
        self._timer.start()

    def _on_time(self, _: int, frame: FrameType | None) -> None:
        if self._is_idle or self._by not in (None, StepsBy.TIME):
            return
        if self._is_busy or not self._is_outside_of_modes or not _may_be_interrupted(frame):
            self._after(_BUSY_S)
        elif self._by is None:
            self._begin(StepsBy.TIME, None)
            self._after(self._injection.seconds if self._by else _PROFILED_S)
        else:
            self._end_step()
            if not self._is_done:  # the steps of a trial are windows too
                self._after(self._injection.seconds if self._by else _PROFILED_S)

    def _begin(self, by: StepsBy, source: Any) -> None:
        from collector.capture.session import begin_capture

        if own_profilers.is_running():
            if not self._has_waited:
                _LOG.info("the program profiles itself: the capture begins when that has ended")
            self._has_waited = True
            return  # the next step tries again
        options = dict(self._injection.options)
        what = f"{self._injection.seconds:g} s"
        if by is StepsBy.TIME:
            options |= _ONE_WINDOW
        else:
            self._source = ref(source)
            what = f"steps of {type(source).__name__} ({by})"
        self._by = by
        _LOG.info("process %d: capturing %s in %s", self._pid, what, self._injection.folder)
        with self._guarded():
            self._session = begin_capture(self._injection.folder, self._injection.device, options)
            self._session.on_gave_way = self._end
            if self._has_waited:
                self._session.note("the program profiles itself: this began after its profiler")
            if by is StepsBy.TIME:
                self._session.note(f"a window of {what}, not a step: see --by and --after-s")

    def _end_step(self) -> None:
        """End a step; within a mode of the program, whose stack a capture may change here, the
        next step ends it."""
        if self._session is not None and self._is_outside_of_modes:
            with self._guarded():
                self._session.step()
                if self._session.is_ended:
                    self._end()

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.gave_way_at_once and not self._has_waited:
            self._by, self._has_waited = None, True  # it begins again, once, after that profiler
            return
        self._detach()
        if session is not None:
            session.end(judge=False)  # the process that started the program does
            _LOG.info("process %d: the capture ended, the program runs on", self._pid)

    def _detach(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        for hook in self._hooks:
            hook.remove()

    def _on_exit(self) -> None:
        if self._is_idle:
            return
        if self._by is not StepsBy.OPTIMIZER:
            self._end_step()  # no call follows that would end the last one
        with self._guarded():
            if self._by is None and self._has_waited:
                self._decline()
            self._end()

    def _decline(self) -> None:
        """Have the verdict name why nothing was captured."""
        from collector.capture.session import begin_capture

        one = self._injection
        fault = "the program profiles itself: its profiler was left alone, and no step is without"
        begin_capture(one.folder, one.device, one.options, declined=fault)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        self._is_busy = True
        try:
            yield
        except Exception as error:  # the program must not fail because of its capture
            self._detach()
            self._session = None
            is_known = isinstance(error, OpmeterError | OSError)  # such as a full disk
            _LOG.error("the capture failed: %s", error, exc_info=None if is_known else error)
        finally:
            self._is_busy = False


_ONE_WINDOW = {"steps": 1, "warmup": 0, "wait": 0, "skip_first": 0, "repeat": 1}


def _may_be_interrupted(frame: FrameType | None) -> bool:
    """Return whether a capture may begin or end within these frames.

    A mode that handles an operator is not on the stack of modes, and a module that is being
    imported is not complete."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__torch_dispatch__" or code.co_filename.startswith(_IMPORTS):
            return False
        frame = frame.f_back
    return True


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("opmeter capture: %(message)s"))
    log = logging.getLogger("collector.capture")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
