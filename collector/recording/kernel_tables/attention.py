"""What the recorded calls of attention launch: the OP Type that msprof prints.

`SEEN` are those of real profiles. The others have the name of their kernel, and are assumed.
"""

from collections.abc import Callable

SEEN = (
    *("aclnnFlashAttentionScore", "aclnnFlashAttentionScoreGrad"),
    "aclnnFusedInferAttentionScoreV3",
)
KERNELS: dict[str, str | Callable[..., str]] = {
    "AtbRingMLA": "RINGMLAPrefillBF16Kernel",
    "aclnnAttentionUpdate": "AttentionUpdate",
    "aclnnFlashAttentionScore": "FlashAttentionScore",
    "aclnnFlashAttentionScoreGrad": "FlashAttentionScoreGrad",
    "aclnnFusedInferAttentionScoreV3": "FusedInferAttentionScore",
    "aclnnFusedInferAttentionScoreV4": "FusedInferAttentionScore",
    "aclnnIncreFlashAttentionV4": "IncreFlashAttention",
    "aclnnLightningIndexer": "LightningIndexer",
    "aclnnPromptFlashAttentionV3": "PromptFlashAttention",
    "aclnnSparseFlashAttention": "SparseFlashAttention",
}
