"""CANN's version files, and the environment that vLLM-Ascend's operators require."""

import shutil
import subprocess
import sys

import pytest

from collector.host.cann import FAKE_MARK, RUNTIME_LIBRARY, cann_runtime, cann_version
from collector.host.custom_operators import custom_opp_problem, with_custom_opp
from collector.host.kernel_libraries import find_kernel_libraries
from collector.model.stack import Runtime
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            "ascend_toolkit_install.info",
            "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=x\n",
        ),
        ("version.info", "Version=8.5.0\n"),
        ("latest/ascend_toolkit_install.info", "package_version: 8.5.0\n"),
        ("aarch64-linux/ascend_toolkit_install.info", "  version=[8.5.0]\n"),
    ],
)
def test_cann_version_is_read_from_the_files_of_its_installer(tmp_path, place, text):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text(text)
    assert cann_version({"ASCEND_HOME_PATH": str(tmp_path)}, ()) == "8.5.0"
    assert cann_version({}, (str(tmp_path),)) == "8.5.0"


def test_first_location_with_a_version_is_used(tmp_path):
    for name, version in (("a", "8.5.0"), ("b", "9.1.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "version.info").write_text(f"Version={version}")
    named = {"ASCEND_TOOLKIT_HOME": str(tmp_path / "b")}
    assert cann_version(named, (str(tmp_path / "a"),)) == "9.1.0"
    assert cann_version({}, (str(tmp_path / "none"),)) is None


def test_environment_with_the_custom_operators_has_no_problem(tmp_path):
    libraries = tmp_path / "op_api" / "lib"
    environment = {
        "ASCEND_CUSTOM_OPP_PATH": f"{tmp_path}:/somewhere/else:",
        "LD_LIBRARY_PATH": f"/usr/lib:{libraries}/",
    }
    assert custom_opp_problem(environment) == ""


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, ("ASCEND_CUSTOM_OPP_PATH", "export ASCEND_CUSTOM_OPP_PATH=")),
        ({"ASCEND_CUSTOM_OPP_PATH": "/nowhere"}, ("ASCEND_CUSTOM_OPP_PATH=/nowhere",)),
        ({"ASCEND_CUSTOM_OPP_PATH": "/tmp"}, ("/tmp/op_api/lib", "LD_LIBRARY_PATH")),
    ],
)
def test_missing_custom_operators_are_reported_with_the_two_lines_that_fix_it(environment, named):
    found = custom_opp_problem(environment)
    assert names(found, *named)
    assert "_cann_ops_custom/vendors/vllm-ascend" in found or "=/tmp:" in found
    assert "op_api/lib/:${LD_LIBRARY_PATH}" in found


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed vllm_ascend, with its operators in the folder of 0.23."""
    folder = tmp_path / "vllm_ascend" / "_cann_ops_custom" / "vendors" / "custom_transformer"
    (folder / "op_api" / "lib").mkdir(parents=True)
    (folder / "op_api" / "lib" / "libcust_opapi.so").write_bytes(b"a library")
    (tmp_path / "vllm_ascend" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "vllm_ascend", raising=False)  # another test's replacement
    return folder


def test_session_of_a_serving_stack_finds_its_custom_operators(installed):
    libraries = f"{installed}/op_api/lib"
    added = with_custom_opp({"LD_LIBRARY_PATH": "/usr/lib"}, "0.23.0")
    assert added == {
        "ASCEND_CUSTOM_OPP_PATH": str(installed),
        "LD_LIBRARY_PATH": f"{libraries}:/usr/lib",
    }
    assert custom_opp_problem(added) == ""
    assert with_custom_opp(added, "0.23.0") == {}
    assert (
        dict(find_kernel_libraries({}, "0.23.0"))["custom_opp"] == "custom_transformer-31f109ab3834"
    )


def test_stack_without_serving_uses_the_operators_of_cann(installed):
    assert with_custom_opp({}, "") == {}
    assert "custom_opp" not in dict(find_kernel_libraries({}, ""))


def test_operators_named_by_the_user_precede_and_a_wrong_path_is_kept(installed, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    named = {"ASCEND_CUSTOM_OPP_PATH": f"{mine}:"}
    assert with_custom_opp(named, "0.23.0") == {"LD_LIBRARY_PATH": f"{mine}/op_api/lib"}
    assert dict(find_kernel_libraries(named, "0.23.0"))["custom_opp"] == "mine-unread"
    both = {"ASCEND_CUSTOM_OPP_PATH": f"{mine}:{installed}"}
    found = dict(find_kernel_libraries(both, "0.23.0"))["custom_opp"]
    assert found == "mine-unread,custom_transformer-31f109ab3834"
    wrong = {"ASCEND_CUSTOM_OPP_PATH": "/nowhere"}
    assert with_custom_opp(wrong, "0.23.0") == {}
    assert names(custom_opp_problem(wrong), "ASCEND_CUSTOM_OPP_PATH=/nowhere")


def test_missing_custom_operators_are_reported_with_their_installed_path(installed):
    assert f"export ASCEND_CUSTOM_OPP_PATH={installed}:" in custom_opp_problem({})


def test_extension_built_otherwise_is_another_stack(installed):
    package = installed.parents[2]
    (package / "vllm_ascend_C.cpython-311-x86_64-linux-gnu.so").write_bytes(b"built here")
    assert dict(find_kernel_libraries({}, "0.23.0"))["vllm_ascend"] == "af79a631e4af"


@pytest.mark.parametrize(
    ("info", "name"),
    [
        # As on a host with nnal 8.2.RC2.
        (
            "    Ascend-cann-atb : 8.2.RC2\n    Ascend-cann-atb Version : 8.2.RC2.B030\n",
            "8.2.RC2.B030-",
        ),
        ("", ""),
        (None, ""),
    ],
)
def test_atb_is_identified_by_its_version_and_library(tmp_path, info, name):
    home = tmp_path / "latest" / "atb" / "cxx_abi_0"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "libatb.so").write_bytes(b"a library")
    if info is not None:
        (tmp_path / "latest" / "version.info").write_text(info)
    assert (
        dict(find_kernel_libraries({"ATB_HOME_PATH": f"{home}/"}, ""))["atb"]
        == f"{name}31f109ab3834"
    )


def test_atb_is_absent_if_not_set_up_and_unread_if_unreadable():
    assert "atb" not in dict(find_kernel_libraries({"ATB_HOME_PATH": " "}, ""))
    assert dict(find_kernel_libraries({"ATB_HOME_PATH": "/"}, ""))["atb"] == "unread"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize(("symbol", "runtime"), [(FAKE_MARK, "fake"), ("aclInit", "real")])
def test_fake_cann_is_recognised_by_a_symbol(tmp_path, monkeypatch, symbol, runtime):
    source, library = tmp_path / "made.c", tmp_path / RUNTIME_LIBRARY
    source.write_text(f"int {symbol}(void) {{ return 1; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert cann_runtime() is Runtime(runtime)


def test_machine_without_cann_is_not_fake(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert cann_runtime() is Runtime.REAL
