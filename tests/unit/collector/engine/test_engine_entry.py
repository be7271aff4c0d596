"""Arguments of a call as the runtime reads them, on this machine and on AArch64, emulated."""

import shutil
import subprocess
from pathlib import Path

import pytest

from collector.engine import build
from collector.engine.stubs import assembly
from collector.engine.symbols import Undefined
from tests.lacking import lacking

pytestmark = pytest.mark.fast

RUNTIME = Path(build.__file__).parent / "runtime"
# More integers than registers, numbers between them, and an executor that the launch passes on.
PROGRAM = """
#include <stdint.h>
void *aclCreateTensor(const int64_t *, uint64_t, int, const int64_t *, int64_t, int,
                      const int64_t *, uint64_t, void *);
int aclnnMadeGetWorkspaceSize(void *, int64_t, double, int64_t, float, int64_t, int64_t, int64_t,
                              int64_t, int64_t, int64_t, uint64_t *, void **);
int aclnnMade(void *, uint64_t, void *, void *);
int aclNothing(void);
int main(void) {
  int64_t shape[] = {4, 2}, strides[] = {2, 1};
  void *executor = 0;
  uint64_t size = 0;
  void *tensor = aclCreateTensor(shape, 2, 27, strides, 0, 2, shape, 2, 0);
  aclnnMadeGetWorkspaceSize(tensor, 11, 0.25, 12, 1.5f, 13, 14, 15, 16, 17, -18, &size, &executor);
  return aclnnMade(0, size, executor, 0) + aclNothing();
}
"""
EXPECTED = "ACLNN aclnnMade(bf16[4,2]:ND, 11, 12, 13, 14, 15, 16, 17, -18; 0.25, 1.5)"


@pytest.mark.parametrize(
    ("machine", "compiler", "emulator"),
    [
        ("x86_64", "x86_64-linux-gnu-gcc", ""),
        ("aarch64", "aarch64-linux-gnu-gcc", "qemu-aarch64-static"),
    ],
)
def test_arguments_are_read_as_a_machine_passes_them(tmp_path, machine, compiler, emulator):
    for tool in filter(None, (compiler, emulator)):
        if shutil.which(tool) is None:
            lacking(f"{tool} is not installed")
    (tmp_path / "main.c").write_text(PROGRAM)
    called = Undefined((), frozenset({"aclNothing"}), frozenset({"aclnnMade"}))
    (tmp_path / "stubs.S").write_text(assembly(called, (), machine))
    sources = [*RUNTIME.glob("*.c"), RUNTIME / "entry.S", *tmp_path.glob("*.[cS]")]
    options = ("-static", "-O2", "-D_GNU_SOURCE", "-w", f"-I{RUNTIME}")
    words = [compiler, *options, "-o", "program", *map(str, sources), "-lpthread"]
    subprocess.run(words, cwd=tmp_path, check=True)
    run = [*filter(None, [emulator]), str(tmp_path / "program")]
    log = tmp_path / "calls.log"
    subprocess.run(run, env={"FAKE_CANN_LOG": str(log), "FAKE_NPU_COUNT": "1"}, check=True)
    assert log.read_text().rstrip("\n").split(" ", 3)[3] == EXPECTED
