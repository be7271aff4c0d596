"""Traces of requests in the forms in which they are published."""

import pytest

from collector.codec.errors import BadInput
from collector.workloads.request_traces import read_requests
from collector.workloads.served_requests import ServedRequest

pytestmark = pytest.mark.fast

# the first lines of the published files
MOONCAKE = """\
{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 3000, "input_length": 13544, "output_length": 71, "hash_ids": [0, 219]}
"""
AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 00:00:00.003163+00:00,2162,11
2024-05-12 00:00:00.038274+00:00,2399,86
"""
BURSTGPT_1 = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
1106,ChatGPT,0,0,0,Conversation log
1129,ChatGPT,1305,477,1782,Conversation log
"""
BURSTGPT_2 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,29,65,Conversation log
"""
LINE = MOONCAKE.splitlines()[0]


def written(tmp_path, text):
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MOONCAKE, [(0, 6758, 500), (3_000_000_000, 13544, 71)]),
        (AZURE_2023, [(0, 4808, 10), (52_000_000, 3180, 8)]),
        (AZURE_2024, [(0, 2162, 11), (35_111_000, 2399, 86)]),
        (BURSTGPT_1, [(0, 472, 18), (1124 * 10**9, 1305, 477)]),
        (BURSTGPT_2, [(0, 906, 446), (51 * 10**9, 36, 29)]),
    ],
    ids=["mooncake", "azure-2023", "azure-2024", "burstgpt-1", "burstgpt-2"],
)
def test_published_trace_is_read_as_it_is(tmp_path, text, expected):
    requests = tuple(ServedRequest(*one) for one in expected)
    assert read_requests(written(tmp_path, text)) == requests
    with_mark = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    assert read_requests(written(tmp_path, with_mark)) == requests
    assert read_requests(written(tmp_path, text), 1) == requests[:1]


def test_requests_are_in_the_order_of_their_arrival(tmp_path):
    early = '{"timestamp": -1.5, "input_length": 5, "output_length": 1}'
    found = read_requests(written(tmp_path, f"{LINE}\n\n{early}\n"))
    assert found == (ServedRequest(0, 5, 1), ServedRequest(1_500_000, 6758, 500))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        (AZURE_2023.splitlines()[0], None),
        (f"{LINE}\nx", 2),
        (f"{LINE}\n[]", 2),
        (f"{LINE}\n" + "[" * 100_000, 2),
        (f"{LINE}\n" + LINE.replace("500", "0"), 2),
        (f"{LINE}\n" + LINE.replace("500", "1.5"), 2),
        (f"{LINE}\n" + LINE.replace("500", "true"), 2),
        (f"{LINE}\n" + LINE.replace("6758", str(1 << 25)), 2),
        (f"{LINE}\n" + LINE.replace('"timestamp": 0', '"timestamp": NaN'), 2),
        (f"{LINE}\n" + LINE.replace("timestamp", "time"), 2),
        (AZURE_2023 + "2023-11-16 18:17:61,5,5\n", 4),
        (AZURE_2023 + "2023-11-16 18:17:05,5,0\n", 4),
        (AZURE_2023 + "2023-11-16 18:17:05,5\n", 4),
        ("\n" + BURSTGPT_1 + "1200,ChatGPT,-1,5,4,API log\n", 6),
        (AZURE_2023.replace("ContextTokens", "NumImages,ContextTokens"), 1),
        ("at,prompt,output\n1,2,3\n", 1),
        (AZURE_2023.encode() + b"\xff\xfe", 4),
    ],
)
def test_line_that_is_no_request_is_refused_with_its_place(tmp_path, text, line):
    path = written(tmp_path, text)
    with pytest.raises(BadInput) as error:
        read_requests(path)
    assert (error.value.path, error.value.line) == (path, line)
    assert "\n" not in str(error.value)


def test_more_requests_than_can_be_served_are_refused_without_a_count(tmp_path):
    path = written(tmp_path, "\n".join([LINE] * 10_001))
    with pytest.raises(BadInput):
        read_requests(path)
    assert len(read_requests(path, 3)) == 3
