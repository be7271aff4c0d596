"""The command `opmeter` in the process of the tests, with its `main`: starting a process for each
of a hundred commands takes several times longer than the commands. What depends on the process,
such as loaded modules and how it ends, is tested in test_jobs_command.py."""

import io
import logging
import os
import sys
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from typer.testing import CliRunner

from jobs.cli import app

ROOT = Path(__file__).parents[4]


class _Ended(BaseException):
    """Raised where the process would end."""


def invoked(*words):
    """The output and exception of a command, as recorded by click's runner, without `main` around
    it."""
    return CliRunner().invoke(app.app_for(words), list(map(str, words)))


def opmeter_here(*arguments, cwd=None, **env):
    """The output of the command, and its exit code."""
    words = [str(argument) for argument in arguments]
    path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
    codes, out, err = [], io.StringIO(), io.StringIO()

    def end(code):
        codes.append(code)
        raise _Ended

    with ExitStack() as stack:
        for within in (
            chdir(cwd or Path.cwd()),
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch.object(sys, "argv", ["opmeter", *words]),
            mock.patch.dict(
                os.environ, {"PATH": path, "HOME": str(cwd or ROOT), **env}, clear=True
            ),
            # Nothing is logged before this: the command adds a handler that writes to its stderr.
            mock.patch.object(logging.root, "handlers", []),
            mock.patch.object(logging.root, "level", logging.WARNING),
            mock.patch.object(app, "end_at_once", end),
            mock.patch.object(app.imports, "without_pandas"),  # it would remain
        ):
            stack.enter_context(within)
        with suppress(_Ended):
            app.main()
    (code,) = codes
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
