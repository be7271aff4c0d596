"""Which launches run before a case, the arguments they share, and their order."""

import pytest

pytest.importorskip("torch", reason="torch is needed: pip install '.[cpu]'")

import torch

from collector.ops.context import BEFORE_CACHE, context_of
from collector.ops.registry import find_operator
from collector.ops.spec import Call
from collector.replay.context import Chain, ChainLaunch, Feed, context_text, feeds_of, results_of
from tests.unit.collector.replay.replay_cases import add_record, case_record

pytestmark = pytest.mark.torch

CASE = add_record(8).case
NZ = case_record("MatMulV3", "4,8;1,1,16,16", "4,8", formats="FRACTAL_NZ").case


def launch(run, *args, case=CASE):
    return ChainLaunch(case, run, Call(*args))


def rows(*shape):
    return torch.ones(shape)


def feeds(*launches, is_real=True):
    *before, own = launches
    return feeds_of(before, [results_of(one, is_real) for one in before], own)


def test_nearest_launches_are_run_until_they_fill_a_cache():
    small, large = add_record(4), add_record(1024)
    unknown = case_record("NoSuchKernel", "4,4", "4,4")
    size_bytes = 3 * 1024 * 64 * 4
    before = (unknown, large, small, unknown, large)
    one = context_of(before, find_operator, "cpu", int(size_bytes / BEFORE_CACHE))
    assert [n.record for n in one.neighbours] == [large]
    assert (one.size_bytes, one.left_out) == (size_bytes, ())
    more = context_of(before, find_operator, "cpu", int(1.5 * size_bytes / BEFORE_CACHE))
    assert [n.record for n in more.neighbours] == [large, small, large]
    assert more.left_out == ("NoSuchKernel",)
    whole = context_of(before, find_operator, "cpu", 1 << 40)
    assert len(whole.neighbours) == 3 and whole.left_out == ("NoSuchKernel",) * 2
    # The context is identified by its cases and their order, not by the omitted ones.
    reported = [context_text(found).partition(";")[0] for found in (one, more, whole)]
    assert reported[0] != reported[1] == reported[2]


def test_argument_is_the_nearest_result_of_its_shape_and_each_result_is_used_once():
    first, second = launch(torch.neg, rows(2, 4)), launch(torch.abs, rows(2, 4))
    other = launch(lambda x: (x.sum(), x.bfloat16()), rows(2, 4))
    own = launch(torch.add, rows(2, 4), rows(2, 4), rows(2, 4))
    assert feeds(first, second, other, own) == (
        (),
        (Feed(0, 0, 0, None),),
        (Feed(0, 1, 0, None),),
        (Feed(0, 1, 0, None), Feed(1, 0, 0, None)),
    )


def test_result_is_reshaped_for_the_argument_unless_it_is_a_vector():
    before = launch(torch.neg, rows(2, 8))
    own = launch(torch.bmm, rows(4, 1, 4), rows(16), rows(2, 4))
    assert feeds(before, own) == ((), (Feed(0, 0, 0, (4, 1, 4)),))


@pytest.mark.parametrize(
    "result",
    [
        torch.zeros(2, 4, dtype=torch.int64),
        torch.full((2, 4), float("nan")),
        torch.ones(4, 2).t(),
        torch.ones(2, 4, dtype=torch.bfloat16),
    ],
)
def test_integer_and_nonstandard_results_are_not_used_as_arguments(result):
    before = launch(lambda: result)
    own = launch(torch.neg, torch.ones(2, 4, dtype=result.dtype).float())
    assert feeds(before, own) == ((), ())


def test_weight_in_an_npu_layout_is_never_replaced_by_a_result():
    before = launch(torch.neg, rows(8, 8))
    product = launch(torch.matmul, rows(4, 8), rows(8, 8), case=NZ)
    assert feeds(before, product) == ((), ())
    assert feeds(before, launch(torch.matmul, rows(4, 8), rows(8, 8)))[-1]


def test_launches_run_in_order_each_after_its_mark_in_every_round():
    message = []

    def run(name, *args):
        message.append(name)
        return args[0] + 1.0

    launches = [
        launch(lambda x: run("a", x), rows(2, 4)),
        launch(lambda x, y: run("b", x, y), rows(2, 4), rows(3, 3)),
        launch(lambda x: run("c", x), rows(5, 5)),
    ]
    own = launch(torch.neg, rows(8, 1))
    found = feeds(*launches, own)
    message.clear()
    chain = Chain(
        launches, own, found, lambda: message.append("begin"), lambda: message.append("|")
    )
    for _ in range(2):
        (argument,) = chain.arguments()
        assert message == ["begin", "|", "a", "|", "b", "|", "c"]
        # Ones, plus one for each launch on their way: never more for a second round.
        assert argument.shape == (8, 1) and argument.unique().tolist() == [3.0]
        message.clear()
