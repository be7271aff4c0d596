"""The usual misconfigurations of an NPU host, planted one by one: the first FAIL names the cause,
and the machine is fit after its fix was followed.

The host consists of stand-ins: npu-smi and msprof are scripts, torch and torch_npu are packages of
a few lines, and CANN is a folder with the files that opmeter reads.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.unit.collector.naming import names

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
_RUN = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from jobs.doctor.machine import check_machine
from jobs.doctor.npu import check_npus
checks = [*check_machine(), *check_npus(*map(Path, sys.argv[1:]))]
print(json.dumps([asdict(check) for check in checks]))
"""
_CLI = "from jobs.cli.app import main; main()"  # not `-m`, which tests start with torch loaded
_NPU_SMI = """\
#!/bin/sh
case "$*" in
  *board*-c*) echo "Chip Name : 910B3"; echo "VDie ID : FA4E0000 00000001" ;;
  *board*) echo "Software Version : {driver}"; echo "Firmware Version : 7.3.0.1.231" ;;
  *common*) echo "Aicore Count : 20" ;;
  *) cat "{table}" ;;
esac
"""
_TABLE = """\
| 0     910B3               | OK            | 93.6        38                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3162 / 65536         |
"""
_DCMI = "dcmi module initialize failed. ret is {}\n"
_MSPROF = '#!/bin/sh\n[ -n "$DRIVER_MOUNTED" ] || { echo "[ERROR] Init platform by driver faild!"'
_MSPROF += "; exit 255; }\necho Usage: ./msprof [--options]\nseq 1000\n"
_TORCH_NPU = """\
import os, sys, torch
if not os.environ.get("ASCEND_HOME_PATH"):
    raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")
if torch.__version__[:4] != __import__("importlib.metadata").metadata.version("torch_npu")[:4]:
    raise ImportError("undefined symbol: _ZN3c1017RegisterOperatorsD1Ev")
"""


@dataclass
class Host:
    """A host that is fit to measure, and what a test changes of it."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dev, self.proc, self.bin, self.site = (
            self.folder / name for name in ("dev", "proc", "bin", "site")
        )
        self.cann = self.folder / "home/Ascend/cann"
        for folder in (self.dev, self.proc, self.bin, self.site, self.cann, self.folder / "tmp"):
            folder.mkdir(parents=True)
        (self.cann / "version.info").write_text("version=8.5.0\n")
        (self.cann / "set_env.sh").write_text(
            f"export ASCEND_HOME_PATH={self.cann}\nexport PATH={self.bin}:$PATH\n"
        )
        for name in ("davinci0", "davinci_manager", "devmm_svm", "hisi_hdc"):
            (self.dev / name).touch()
        self.table(_TABLE)
        self.driver("25.2.2")
        self.program("msprof", _MSPROF)
        self.program("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self.torch("2.9.0+cpu", "2.9.0.post1")
        self.env = {
            "HOME": str(self.folder / "home"),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "PYTHONPATH": f"{self.site}:{ROOT}",
            "TMPDIR": str(self.folder / "tmp"),
            "ASCEND_HOME_PATH": str(self.cann),
            "DRIVER_MOUNTED": "1",
        }

    def program(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def driver(self, version: str) -> None:
        script = _NPU_SMI.format(driver=version, table=self.folder / "table")
        self.program("npu-smi", script)

    def table(self, text: str) -> None:
        (self.folder / "table").write_text(text)

    def torch(self, torch: str, torch_npu: str) -> None:
        for name, version, text in (
            ("torch", torch, f"__version__ = '{torch}'\nclass npu:\n  device_count = lambda: 1\n"),
            ("torch_npu", torch_npu, _TORCH_NPU),
        ):
            package = self.site / name
            package.mkdir(exist_ok=True)
            (package / "__init__.py").write_text(text)
            (package / "version.py").write_text(f"__version__ = '{version}'\n")
            for old in self.site.glob(f"{name}-*.dist-info"):
                shutil.rmtree(old)
            info = self.site / f"{name}-{version.partition('+')[0]}.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")

    def source(self, script: str) -> None:
        """Apply the environment of a shell that has run these lines."""
        done = subprocess.run(
            ["bash", "-c", f"{script}\nexec env -0"], env=self.env, capture_output=True, check=True
        )
        pairs = (entry.partition("=") for entry in done.stdout.decode().split("\0") if entry)
        self.env = {name: text for name, _, text in pairs}

    def check(self) -> list[dict[str, object]]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _RUN, str(self.dev), str(self.proc)],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, object]] = json.loads(done.stdout)
        return [check for check in found if check["name"] != "memory"]  # this machine's


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def failed(checks: list[dict[str, object]]) -> list[str]:
    return [str(check["name"]) for check in checks if not check["ok"]]


def follows(checks: list[dict[str, object]], cause: str) -> list[str]:
    """The checks that are reported as consequences of a cause."""
    return [
        str(check["name"]) for check in checks if f"follows from `{cause}`" in str(check["found"])
    ]


def planted(
    host: Host,
    cause: str,
    *words: object,
    fix: tuple[object, ...],
    consequences: tuple[str, ...] = (),
) -> str:
    """Expect one FAIL, of this cause; return its fix."""
    checks = host.check()
    assert failed(checks) == [cause], checks
    (check,) = (check for check in checks if not check["ok"])
    assert names(check["found"], *words), check["found"]
    assert names(check["fix"], *fix), check["fix"]
    assert follows(checks, cause) == list(consequences)
    return str(check["fix"])


def test_fit_host_has_no_failure(host):
    checks = host.check()
    assert failed(checks) == []
    assert follows(checks, "npu") == []


def test_driver_older_than_cann_requires_is_reported(host):
    (host.cann / "version.info").write_text("version=9.1.0\n")
    planted(host, "driver", "25.2.2", "9.1.0", "26.0", fix=("driver 26.0", "CANN 9.0"))
    host.driver("26.1.1")
    assert failed(host.check()) == []


def test_torch_npu_of_another_release_than_torch_is_reported(host):
    host.torch("2.9.0+cpu", "2.8.0")
    reported = ("2.8.0", "2.9.0+cpu", "same release")
    fix = ("pip install 'torch_npu==2.9.0.*'",)
    planted(host, "torch_npu", *reported, fix=fix, consequences=("import",))
    host.torch("2.9.0+cpu", "2.9.0.post4")
    assert failed(host.check()) == []


def test_msprof_that_cannot_start_is_reported(host):
    del host.env["DRIVER_MOUNTED"]
    fix = ("/usr/local/Ascend/driver/lib64/common", "export LD_LIBRARY_PATH=")
    planted(host, "msprof", "Init platform by driver faild!", fix=fix)
    host.env["DRIVER_MOUNTED"] = "1"  # the mount that the fix names
    assert failed(host.check()) == []


def test_environment_without_set_env_is_reported(host):
    del host.env["ASCEND_HOME_PATH"]
    script = f"source {host.cann}/set_env.sh"
    fix = planted(host, "cann", "set_env.sh", fix=(script,), consequences=("msprof", "import"))
    host.source(fix)
    assert failed(host.check()) == []


def test_cuda_build_of_torch_is_reported(host):
    host.torch("2.9.0+cu128", "2.9.0")
    fix = ("CPU build", "pip install torch==2.9.0+cpu")
    planted(host, "torch_npu", "2.9.0+cu128", fix=fix, consequences=("import",))
    host.torch("2.9.0+cpu", "2.9.0")
    assert failed(host.check()) == []


OF_DEVICES = ("health", "driver", "msprof", "import")


def test_missing_permission_on_device_nodes_is_reported(host, monkeypatch):
    closed = host.dev / "davinci0"
    closed.chmod(0o060)
    host.table(_DCMI.format(-8005))
    run = _RUN.replace("checks =", f"{_NOT_ROOT}\nchecks =")
    monkeypatch.setattr(sys.modules[__name__], "_RUN", run)
    owner = closed.stat()
    reported = ("no permission on", closed, owner.st_uid, f"this is user {os.getuid()}", "-8005")
    fix = (f"--group-add {owner.st_gid}", "supplemental_groups")
    planted(host, "npu", *reported, fix=fix, consequences=OF_DEVICES)
    closed.chmod(stat.S_IRUSR | stat.S_IWUSR)
    host.table(_TABLE)
    assert failed(host.check()) == []


# os.access as for a user who is not root: by the mode of the file alone.
_NOT_ROOT = """
import os
os.access = lambda path, mode: bool(os.stat(path).st_mode & 0o600)
"""


def test_group_that_may_not_open_a_node_is_no_remedy(host, monkeypatch):
    closed = host.dev / "devmm_svm"
    closed.chmod(0o040)
    monkeypatch.setattr(
        sys.modules[__name__], "_RUN", _RUN.replace("checks =", f"{_NOT_ROOT}\nchecks =")
    )
    fix = planted(host, "npu", closed, fix=("run_as_user",), consequences=OF_DEVICES)
    assert "group" not in fix


# os.open as where the device cgroup of a container does not permit a device.
_NOT_PERMITTED = """
import errno, os
def refuse(path, flags, *mode, opened=os.open, **more):
    if str(path).endswith("davinci_manager"):
        raise PermissionError(errno.EPERM, "Operation not permitted", path)
    return opened(path, flags, *mode, **more)
os.open = refuse
"""


def test_device_cgroup_that_permits_no_device_is_reported(host, monkeypatch):
    host.table(_DCMI.format(-8005))
    run = _RUN.replace("checks =", f"{_NOT_PERMITTED}\nchecks =")
    monkeypatch.setattr(sys.modules[__name__], "_RUN", run)
    reported = ("device cgroup", host.dev / "davinci_manager", "-8005")
    fix = ("--device", "Static CPU manager")
    planted(host, "npu", *reported, fix=fix, consequences=OF_DEVICES)
    host.table(_TABLE)
    assert failed(host.check()) == []


def test_device_used_by_another_container_is_reported(host):
    for code in (-8005, -8020):
        host.table(_DCMI.format(code))
        reported, fix = ("another container", code), ("docker ps", "/dev/davinciN")
        planted(host, "npu", *reported, fix=fix, consequences=OF_DEVICES)
    host.table(_TABLE)
    assert failed(host.check()) == []


def test_container_without_npu_smi_is_reported(host):
    hidden = (host.bin / "npu-smi").rename(host.folder / "npu-smi")
    fix = ("mount npu-smi",)
    planted(host, "npu", "npu-smi is not on PATH", fix=fix, consequences=("health", "driver"))
    hidden.rename(host.bin / "npu-smi")
    assert failed(host.check()) == []


def test_wrong_path_of_custom_operators_is_reported(host):
    host.env["ASCEND_CUSTOM_OPP_PATH"] = "/nowhere"
    wrong = ("ASCEND_CUSTOM_OPP_PATH=/nowhere", "expected a folder")
    host.source(planted(host, "custom OPP", *wrong, fix=("unset ASCEND_CUSTOM_OPP_PATH",)))
    assert failed(host.check()) == []


def test_wrong_path_of_custom_operators_is_replaced_by_the_installed_ones(host):
    operators = host.site / "vllm_ascend/_cann_ops_custom/vendors/vllm-ascend"
    (operators / "op_api/lib").mkdir(parents=True)
    (host.site / "vllm_ascend/__init__.py").touch()
    host.env["ASCEND_CUSTOM_OPP_PATH"] = "/nowhere"
    fix = planted(host, "custom OPP", "/nowhere", fix=(f"{operators}/op_api/lib/",))
    host.source(fix.partition("; without")[0])
    assert failed(host.check()) == []


def test_disk_too_small_for_a_session_is_reported(host):
    host.env["OPMETER_VOLUME_BYTES"] = str(1 << 30)
    reported = ("1.0 GiB free", host.folder / "tmp", "26,214", "100,000")
    planted(host, "disk", *reported, fix=("TMPDIR", host.folder / "tmp"))
    del host.env["OPMETER_VOLUME_BYTES"]  # like a volume that is large enough
    assert failed(host.check()) == []


def test_python_without_sqlite3_is_reported(host):
    refuse = "echo \"ModuleNotFoundError: No module named '_sqlite3'\"; exit 1"
    host.program("python3", f"#!/bin/sh\n{refuse}\n")
    reported = (host.bin / "python3", "'_sqlite3'")
    fix = planted(host, "sqlite3", *reported, fix=("export PATH=", Path(sys.executable).parent))
    host.source("export " + fix.partition("export ")[2])
    assert failed(host.check()) == []


def test_another_python_is_the_remedy_if_this_one_lacks_sqlite3(host):
    (host.site / "sitecustomize.py").write_text("import sys; sys.modules['_sqlite3'] = None\n")
    fix = planted(host, "sqlite3", sys.executable, "_sqlite3", fix=("install opmeter with",))
    assert "export PATH" not in fix


def test_other_active_profiler_is_reported(host):
    process = host.proc / "4321"
    process.mkdir()
    (process / "comm").write_text("msprof\n")
    (process / "cmdline").write_bytes(b"msprof\0--output=/tmp\0python\0train.py\0")
    reported = ("process 4321", "msprof --output=/tmp python train.py")
    planted(host, "profilers", *reported, fix=("process 4321", "end it"))
    shutil.rmtree(process)
    host.env["PROFILING_MODE"] = "true"
    fix = planted(host, "profilers", "PROFILING_MODE=true", fix=("unset PROFILING_MODE",))
    host.source(fix)
    assert failed(host.check()) == []


def test_self_test_that_cannot_begin_reports_the_machine(host):
    (host.bin / "npu-smi").unlink()
    log = host.folder / "home/ascend/log/debug/plog"
    log.mkdir(parents=True)
    (log / "plog-1_1.log").write_text("[ERROR] RUNTIME: driver error\n")
    report = host.folder / "report.zip"
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CLI, "selftest", "npu", "--report", str(report)],
        env=host.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    message = done.stdout + done.stderr
    (line,) = (line for line in message.splitlines() if line.startswith("FAIL"))
    assert names(line, "environment", "npu-smi is not on PATH")
    assert "fix: mount npu-smi" in message
    with zipfile.ZipFile(report) as archive:
        verdicts = json.loads(archive.read("selftest.json"))
        machine = archive.read("machine.txt").decode()
        assert archive.read("cann/0-plog-1_1.log").startswith(b"[ERROR] RUNTIME")
    assert [check["name"] for check in verdicts["checks"]] == ["environment"]
    reported = (
        "torch 2.9.0",
        f"ASCEND_HOME_PATH={host.cann}",
        f"user {os.getuid()}",
        "npu-smi info",
        "doctor: ok cann: 8.5.0",
    )
    assert names(machine, *reported)
