"""A decoder: the sizes of its layers, heads and experts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes in elements. What a model does not have is 0: `q_lora` and the three sizes after it
    without latent attention (MLA), experts in a dense model, the indexer without sparse attention.

    rotated          numbers of a head that are rotated
    dense_layers     layers whose feed-forward is dense
    shared           size of the shared expert, or of all of them together
    indexers         layers that choose keys; the others take the choice of one before them
    chosen           keys that each query attends to at most
    predictors       layers that predict tokens beyond the next (MTP), behind the others
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    rotated: int
    normalises_heads: bool = False
    biases_qkv: bool = False
    biases_o: bool = False
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    experts: int = 0
    choices: int = 0
    expert_intermediate: int = 0
    shared: int = 0
    gates_shared: bool = False
    routes_in_float: bool = False
    biases_choices: bool = False
    dense_layers: int = 0
    indexers: int = 0
    index_heads: int = 0
    index_size: int = 0
    chosen: int = 0
    chooses_by_cann: bool = False
    predictors: int = 0

    @property
    def is_mla(self) -> bool:
        return self.kv_lora > 0

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def is_sparse(self) -> bool:
        return self.chosen > 0
