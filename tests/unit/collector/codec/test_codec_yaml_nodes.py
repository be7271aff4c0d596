"""YAML text is read, or refused in one line: also malicious text."""

import tracemalloc

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collector.codec import yaml_nodes
from collector.codec.document import read_document
from collector.codec.errors import BadInput
from collector.codec.yaml_nodes import read_node
from collector.database.op_mapping import check_op_mapping, read_values
from tests.unit.collector.naming import naming


def merge_bomb(levels, wide=9):
    """Each level merges the one before it many times."""
    lines = ["a0: &a0 {kernel_type: Add, x: 1}"]
    for at in range(1, levels):
        lines.append(f"a{at}: &a{at} {{<<: [{','.join([f'*a{at - 1}'] * wide)}]}}")
    return "\n".join(lines) + "\n"


def alias_bomb(levels, wide=9):
    lines = ["a0: &a0 [x, x]"]
    for at in range(1, levels):
        lines.append(f"a{at}: &a{at} [{','.join([f'*a{at - 1}'] * wide)}]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("bomb", [merge_bomb(12), alias_bomb(12)], ids=["merge keys", "aliases"])
@pytest.mark.parametrize("read", [read_node, lambda text, path: check_op_mapping(text, path=path)])
def test_small_yaml_cannot_expand_to_gigabytes(bomb, read):
    assert len(bomb) < 1000
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=naming("o.yaml:6:", "alias", 100_000)):
            read(bomb, "o.yaml")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("a: &a\n  <<: *a\n", 1, ("mapping",)),
        ("x: &x\n  <<: &y\n    <<: [*x]\n", 1, ("mapping",)),
        ("a: 1" + ":1" * 500, 1, ("number", 200)),
        ("[" * 1500, None, ("nested",)),
        ("a: " + "x" * (1 << 20), None, (1 << 20,)),
        ('a: "\\UFFFFFFFF"', None, ("escape",)),
    ],
)
def test_yaml_that_would_take_too_long_to_read_is_refused(text, line, named):
    with pytest.raises(BadInput, match=naming(*named)) as caught:
        read_node(text, "o.yaml")
    assert (caught.value.path, caught.value.line) == ("o.yaml", line)
    assert "alias" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        (f"a: [{'1,' * 1001}]", 1, (1000,)),
        ("a: &a [" + "1," * 400 + "]\nb:\n  c: *a\n  d: *a\n  e: *a\n", 5, ("alias", 1000)),
    ],
)
def test_yaml_with_too_many_values_is_refused(monkeypatch, text, line, named):
    """Whether they are written out or aliases, at a small limit."""
    monkeypatch.setattr(yaml_nodes, "_MOST_VALUES", 1000)
    with pytest.raises(BadInput, match=naming(*named)) as caught:
        read_node(text, "o.yaml")
    assert (caught.value.path, caught.value.line) == ("o.yaml", line)
    assert ("alias" in str(caught.value)) == ("alias" in named)


def test_aliases_and_merges_of_ordinary_size_are_read():
    text = "a: &a {k: 1}\nb: {<<: *a, m: [*a, *a]}\nc: &c [*c]\n"
    assert isinstance(read_node(text, "o.yaml"), yaml.MappingNode)
    assert isinstance(read_node(merge_bomb(4), "o.yaml"), yaml.MappingNode)


_PIECES = st.sampled_from(
    ["a: ", "&a ", "*a", "<<: ", "[", "]", "{", "}", ", ", "- ", "\n", "  ", "!!int ", "? ", "|\n"]
)


@given(st.lists(_PIECES | st.text(max_size=3), max_size=30).map("".join))
def test_any_text_is_read_or_refused(text):
    for read in (read_node, lambda text, path: check_op_mapping(text, path=path)):
        try:
            read(text, "o.yaml")
        except BadInput as error:
            assert str(error).startswith("o.yaml")


@pytest.mark.parametrize("read", [read_document, read_values])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: {b: 1}\n", ("o.yaml:1: a:", "list", "mapping")),
        ("\na: []\n", ("o.yaml:2: a:", "list", "empty")),
    ],
)
def test_both_readers_name_a_value_and_its_line(read, text, named):
    with pytest.raises(BadInput, match=naming(*named)):
        dict_of(read(text, "o.yaml"))["a"].items()
    assert [item.name for item in dict_of(read("a: [1, 2]", "o.yaml"))["a"].items()] == [
        "a[0]",
        "a[1]",
    ]


def dict_of(document):
    return document.mapping() if hasattr(document, "mapping") else document.fields()


def test_error_quotes_values_of_own_documents_only():
    with pytest.raises(BadInput, match=naming("o.yaml:1: a:", "list", "'secret'")):
        read_document("a: secret", "o.yaml").mapping()["a"].items()
    with pytest.raises(BadInput, match=naming("o.yaml:1: a:", "list")) as caught:
        read_values("a: secret", "o.yaml").fields()["a"].items()
    assert "secret" not in str(caught.value)
