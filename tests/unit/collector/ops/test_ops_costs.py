"""Operations and bytes of one launch, against sums done by hand."""

import pytest

from collector.ops.registry import find_operator

pytestmark = pytest.mark.fast

BF16 = "DT_BF16"
LENGTHS_AND_SCALES = ";INT64" * 5 + ";FLOAT" * 3


def costs(case):
    op = find_operator(case.kernel_type)
    op.check(case, "cpu")
    return op.flops(case), op.traffic(case)


@pytest.mark.parametrize(
    ("cells", "flops", "traffic"),
    [
        # 12 * 8 = 96 sums; 96 * 4 read, 96 * 2 read, 96 * 4 written = 960
        (("Add", "12,8;12,8", f"FLOAT;{BF16}", "12,8", "FLOAT"), 96, 960),
        # two scalars in, one out: 3 * 8
        (("Add", ";", "INT64;INT64", "", "INT64"), 1, 24),
        # 16 * 4 = 64 products; (16 + 4 + 64) * 4 = 336
        (("Mul", "16,1;4", "FLOAT;FLOAT", "16,4", "FLOAT"), 64, 336),
        # 4 comparisons; (4 + 1) * 4 + 4 * 1 = 24
        (("Greater", "4;", "FLOAT;FLOAT", "4", "BOOL"), 4, 24),
        # nothing computed; 24 * 4 + 24 * 2 = 144
        (("Cast", "6,4", "FLOAT", "6,4", BF16), 0, 144),
        # the block only: 12 * 4 * 2 = 96 elements of 2 bytes, twice, and 2 * 3 * 8 of positions
        (("Slice", "12,4,8;3;3", f"{BF16};INT64;INT64", "12,4,2", BF16), 0, 432),
        # written only: 40 * 4
        (("ZerosLike", "40", "FLOAT", "40", "FLOAT"), 0, 160),
        # 6 * 16 + 6 * 8 + 6 * 8 in, 6 * 32 out, 2 bytes each: (96 + 48 + 48 + 192) * 2 = 768
        (("ConcatD", "6,16;6,8;6,8", f"{BF16};{BF16};{BF16}", "6,32", BF16), 0, 768),
        # 60 squares and 60 sums; 60 * 4 + 4
        (("LpNormV2", "60", "FLOAT", "", "FLOAT"), 120, 244),
        # 13 * 24; read 4 * 24 * 4 + 8 = 392, written 3 * 24 * 4 = 288
        (
            ("ApplyAdamWV2", "24;24;24;24;1", "FLOAT;FLOAT;FLOAT;FLOAT;INT64", "N/A", "N/A"),
            312,
            680,
        ),
        # 4 * 48; x and y 48 * 2 each, gamma 8 * 2, rstd 6 * 4: 96 + 96 + 16 + 24 = 232
        (("RmsNorm", "6,1,8;8", f"{BF16};{BF16}", "6,1,8;6,1,1", f"{BF16};FLOAT"), 192, 232),
        # 9 * 48; dy, x, dx 96 each, rstd 24, gamma 16, dgamma 8 * 4: 288 + 24 + 16 + 32 = 360
        (
            (
                *("RmsNormGrad", "6,1,8;6,1,8;6,1,1;8", f"{BF16};{BF16};FLOAT;{BF16}"),
                *("6,1,8;8", f"{BF16};FLOAT"),
            ),
            432,
            360,
        ),
        # 5 * 24; (48 + 24) * 2
        (("SwiGlu", "6,8", BF16, "6,4", BF16), 120, 144),
        # 11 * 24; (24 + 48 + 48) * 2
        (("SwiGluGrad", "6,4;6,8", f"{BF16};{BF16}", "6,8", BF16), 264, 240),
        # 3 * 384; (384 + 96 + 96 + 384) * 2 = 1920
        (
            (
                *("RotaryPositionEmbedding", "6,1,4,16;6,1,1,16;6,1,1,16"),
                *(f"{BF16};{BF16};{BF16}", "6,1,4,16", BF16),
            ),
            1152,
            1920,
        ),
        # the same: x is absent, and so are the gradients of cos and sin
        (
            (
                *("RotaryPositionEmbeddingGrad", "6,1,4,16;6,1,1,16;6,1,1,16;"),
                *(f"{BF16};{BF16};{BF16};DT_UNDEFINED", "6,1,4,16;;", f"{BF16};{BF16};{BF16}"),
            ),
            1152,
            1920,
        ),
        # rows found: 12 * 6 * 2 = 144, read and written; 12 * 8 + 8 of indices and axis: 392
        (("GatherV2", "20,6;1,12;1", f"{BF16};INT64;INT64", "1,12,6", BF16), 0, 392),
        # 72 sums; 12 * 6 * 4 = 288 read, 288 written, 2 * 12 * 4 of numbers: 672
        (("EmbeddingDenseGradV2", "1,12,6;12;12", "FLOAT;INT32;INT32", "20,6", "FLOAT"), 72, 672),
        # 16 numbers, a product and a sum each; 3 * 8 in, 16 * 4 out
        (("Range", ";;", "DOUBLE;DOUBLE;DOUBLE", "16", "FLOAT"), 32, 88),
        # 2 * 10 * 32 * 6; (320 + 192) + 6 * 4 + 10 * 4 in, 60 * 2 out
        (
            (
                *("QuantBatchMatmulV3", "10,32;32,6;6;;;10"),
                *("INT8;INT8;FLOAT;DT_UNDEFINED;DT_UNDEFINED;FLOAT", "10,6", "DT_BF16"),
            ),
            3840,
            696,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_costs(case_of, cells, flops, traffic):
    assert costs(case_of(*cells)) == (flops, traffic)


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        ("4096,6144;4096,1024", "6144,1024"),
        ("4096,1024;6144,1024", "4096,6144"),
        ("4096,6144;6144,1024", "4096,1024"),
    ],
)
def test_products_of_a_real_layer(case_of, inputs, output):
    # 2 * 4096 * 6144 * 1024 = 51,539,607,552 whichever operand is transposed;
    # (4096 * 6144 + 6144 * 1024 + 4096 * 1024) * 2 = 71,303,168 bytes
    case = case_of("MatMulV3", inputs, f"{BF16};{BF16}", output, BF16)
    assert costs(case) == (51_539_607_552, 71_303_168)


@pytest.mark.parametrize(
    ("mask", "pairs", "mask_bytes"), [("2048,2048", 4096 * 4096 // 2, 2048**2), ("", 4096**2, 0)]
)
def test_attention_counts_half_of_a_causal_square(case_of, mask, pairs, mask_bytes):
    case = case_of(
        "FlashAttentionScore",
        f"4096,1,2048;4096,1,1024;4096,1,1024;;;;{mask};;;;;;;;",
        f"{BF16};{BF16};{BF16};{BF16};UINT8;{BF16};BOOL{LENGTHS_AND_SCALES}",
        "1,16,4096,8;1,16,4096,8;;4096,1,2048",
        f"FLOAT;FLOAT;{BF16};{BF16}",
    )
    # 16 heads of 128: q k^T and p v are 2 * 128 operations a pair each.
    # causal: 4 * 128 * 16 * 8,388,608 = 68,719,476,736
    flops = 4 * 128 * 16 * pairs
    # q and the output 2 * 4096 * 2048 * 2, k and v 2 * 4096 * 1024 * 2, two statistics
    # of 16 * 4096 * 8 * 4 each
    traffic = 33_554_432 + 16_777_216 + 2 * 2_097_152 + mask_bytes
    assert costs(case) == (flops, traffic)


def test_attention_of_fewer_queries_than_keys_hides_a_triangle_only(case_of):
    case = case_of(
        "FlashAttentionScore",
        "1,2,4,16;1,1,10,16;1,1,10,16;;;;2048,2048;;;;;;;;",
        f"{BF16};{BF16};{BF16};{BF16};UINT8;{BF16};BOOL{LENGTHS_AND_SCALES}",
        "1,2,4,8;1,2,4,8;;1,2,4,16",
        f"FLOAT;FLOAT;{BF16};{BF16}",
    )
    # 4 * 10 pairs less 4 * 4 / 2, in 2 heads of 16: 4 * 16 * 2 * 32
    assert costs(case)[0] == 4096


def test_the_gradient_of_attention_is_five_products(case_of):
    case = case_of(
        "FlashAttentionScoreGrad",
        "4096,1,2048;4096,1,1024;4096,1,1024;4096,1,2048;2048,2048;"
        "1,16,4096,8;1,16,4096,8;;4096,1,2048;;;;;;",
        f"{BF16};{BF16};{BF16};{BF16};BOOL;FLOAT;FLOAT;{BF16};{BF16};INT64" + ";FLOAT" * 5,
        "4096,1,2048;4096,1,1024;4096,1,1024;;;",
        ";".join([BF16] * 6),
    )
    # 5 * 2 * 128 * 16 * 8,388,608 = 171,798,691,840; q, dy, attention and dq are
    # 16,777,216 bytes each, k, v, dk and dv 8,388,608, two statistics 2,097,152, the mask 4,194,304
    traffic = 4 * 16_777_216 + 4 * 8_388_608 + 2 * 2_097_152 + 4_194_304
    assert costs(case) == (171_798_691_840, traffic)


def test_products_of_one_weight_are_a_group(case_of):
    def group(inputs, output, dtype=BF16):
        case = case_of("MatMulV3", inputs, f"{dtype};{dtype}", output, dtype)
        return find_operator("MatMulV3").group(case)

    assert group("10,4;6,4", "10,6") == group("99,4;6,4", "99,6")
    assert group("10,4;6,4", "10,6") != group("10,4;7,4", "10,7")
    assert group("10,4;6,4", "10,6") != group("10,4;6,4", "10,6", "FLOAT16")
