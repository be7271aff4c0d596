"""What memory a process is told it can have, on a bare machine and in a container."""

import pytest

from collector.host.memory import available_memory_bytes

pytestmark = pytest.mark.fast

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """Files as the kernel shows them; `group` adds a control group's."""
    (tmp_path / "meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:   8192 kB\n")
    (tmp_path / "cgroup").write_text("")

    def ask(membership="", groups=()):
        (tmp_path / "cgroup").write_text(membership)
        for folder, files in groups:
            place = tmp_path / "cgroups" / folder
            place.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (place / name).write_text(text)
        return available_memory_bytes(
            tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "cgroups"
        )

    return ask


def test_a_bare_machine_has_what_the_kernel_says(machine):
    assert machine() == 8 * MIB
    assert machine("0::/user.slice\n", [("user.slice", {"memory.max": "max\n"})]) == 8 * MIB


def test_a_container_has_what_its_limit_leaves_and_file_caches_count_as_free(machine):
    files = {
        "memory.max": str(4 * MIB),
        "memory.current": str(3 * MIB),
        "memory.stat": f"anon 1\ninactive_file {MIB}\n",
    }
    assert machine("0::/\n", [("", files)]) == 2 * MIB


def test_the_narrowest_of_nested_groups_counts(machine):
    outer = {"memory.max": str(4 * MIB), "memory.current": str(3 * MIB)}
    inner = {"memory.max": str(4 * MIB), "memory.current": str(MIB)}
    assert machine("0::/a/b\n", [("a", outer), ("a/b", inner)]) == MIB


def test_the_older_groups_are_read_too(machine):
    files = {"memory.limit_in_bytes": str(2 * MIB), "memory.usage_in_bytes": str(MIB)}
    line = "7:cpu,cpuacct:/x\n5:memory:/kubepods/pod1\n"
    assert machine(line, [("memory/kubepods/pod1", files)]) == MIB


def test_a_group_over_its_limit_leaves_nothing(machine):
    files = {"memory.max": "10", "memory.current": "20"}
    assert machine("0::/\n", [("", files)]) == 0


def test_where_nobody_tells_nothing_is_known(tmp_path):
    nowhere = tmp_path / "absent"
    assert available_memory_bytes(nowhere, nowhere, nowhere) is None
