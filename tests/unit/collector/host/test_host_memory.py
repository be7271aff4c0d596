"""The memory available to a process, on a bare machine and in a container."""

import pytest

from collector.host.space import available_memory_bytes, container_memory

pytestmark = pytest.mark.fast

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """Write files as the kernel shows them; `group` adds a control group's."""
    (tmp_path / "meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:   8192 kB\n")
    (tmp_path / "cgroup").write_text("")

    def request(membership="", groups=()):
        (tmp_path / "cgroup").write_text(membership)
        for folder, files in groups:
            place = tmp_path / "cgroups" / folder
            place.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (place / name).write_text(text)
        return available_memory_bytes(
            tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "cgroups"
        )

    return request


def test_bare_machine_has_the_memory_that_the_kernel_reports(machine):
    assert machine() == 8 * MIB
    assert machine("0::/user.slice\n", [("user.slice", {"memory.max": "max\n"})]) == 8 * MIB


def test_container_memory_is_its_limit_less_usage_without_file_caches(machine):
    files = {
        "memory.max": str(4 * MIB),
        "memory.current": str(3 * MIB),
        "memory.stat": f"anon 1\ninactive_file {MIB}\n",
    }
    assert machine("0::/\n", [("", files)]) == 2 * MIB


def test_smallest_limit_of_nested_cgroups_is_used(machine):
    outer = {"memory.max": str(4 * MIB), "memory.current": str(3 * MIB)}
    inner = {"memory.max": str(4 * MIB), "memory.current": str(MIB)}
    assert machine("0::/a/b\n", [("a", outer), ("a/b", inner)]) == MIB


def test_cgroups_of_version_1_are_read(machine):
    files = {"memory.limit_in_bytes": str(2 * MIB), "memory.usage_in_bytes": str(MIB)}
    line = "7:cpu,cpuacct:/x\n5:memory:/kubepods/pod1\n"
    assert machine(line, [("memory/kubepods/pod1", files)]) == MIB


def test_cgroup_over_its_limit_has_no_free_memory(machine):
    files = {"memory.max": "10", "memory.current": "20"}
    assert machine("0::/\n", [("", files)]) == 0


@pytest.mark.parametrize(
    ("membership", "folder", "names", "prefix"),
    [
        ("0::/\n", "", ("memory.max", "memory.current"), ""),
        (
            "5:memory:/pod1\n",
            "memory/pod1",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_",
        ),
    ],
)
def test_used_memory_of_a_container_excludes_reclaimable_caches(
    tmp_path, membership, folder, names, prefix
):
    (tmp_path / "cgroup").write_text(membership)
    place = tmp_path / "cgroups" / folder
    place.mkdir(parents=True)
    for name, size in zip(names, (8, 7), strict=True):
        (place / name).write_text(f"{size * MIB}\n")
    (place / "memory.stat").write_text(
        f"{prefix}inactive_file {MIB}\n{prefix}active_file {2 * MIB}\n"
    )
    found = container_memory(tmp_path / "cgroup", tmp_path / "cgroups")
    assert (found.limit, found.held) == (8 * MIB, 4 * MIB)
    assert container_memory(tmp_path / "absent", tmp_path / "cgroups") is None


def test_memory_is_unknown_without_kernel_files(tmp_path):
    nowhere = tmp_path / "absent"
    assert available_memory_bytes(nowhere, nowhere, nowhere) is None
