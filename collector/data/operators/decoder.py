"""Passes of small decoders, dense and with a mixture of experts: `--operators decoder.py`.

The shapes of the arguments are the layout of the module and the load: keys and values are the cache
of all layers, with the new tokens at its end; `up` is one of the projections of each layer.

    Decoder tokens;keys;values;embedding;up
    Decoder 4,1;6,4,8,128,64;6,4,8,128,64;8192,512;6,512,2048 i64;f32;f32;f32;f32

decodes one token for each of 4 requests with 128 tokens each, in 6 layers of 8 heads of 64.
"""

import torch
from torch import nn
from torch.nn import functional as F

from opmeter.operators import Call, Operator

TOP_EXPERTS = 2


class Attention(nn.Module):
    def __init__(self, linear, width, heads, head):
        super().__init__()
        self.heads, self.head = heads, head
        self.qkv = linear(width, 3 * heads * head)
        self.out = linear(heads * head, width)

    def forward(self, x, keys, values):
        batch, new, _ = x.shape
        qkv = self.qkv(x).view(batch, new, 3, self.heads, self.head).transpose(1, 3)
        keys[:, :, -new:] = qkv[:, :, 1]
        values[:, :, -new:] = qkv[:, :, 2]
        found = F.scaled_dot_product_attention(qkv[:, :, 0], keys, values, is_causal=new > 1)
        return self.out(found.transpose(1, 2).reshape(batch, new, -1))


class Dense(nn.Module):
    def __init__(self, linear, width, hidden):
        super().__init__()
        self.gate, self.up = linear(width, hidden), linear(width, hidden)
        self.down = linear(hidden, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Experts with loads that are fixed by the place of a token: each launch computes the same."""

    def __init__(self, linear, width, hidden, experts, tokens):
        super().__init__()
        self.router = linear(width, experts)
        self.experts = nn.ModuleList(Dense(linear, width, hidden) for _ in range(experts))
        places = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0))
        self.register_buffer("places", 1e3 * places)

    def forward(self, x):
        rows = x.view(-1, x.shape[-1])
        scores, chosen = (self.router(rows) + self.places).topk(TOP_EXPERTS)
        shares = scores.softmax(-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            out.index_add_(0, row, expert(rows[row]) * shares[row, place, None])
        return out.view(x.shape)


class Layer(nn.Module):
    def __init__(self, attention, feed_forward, width):
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x, keys, values):
        x = x + self.attention(self.norms[0](x), keys, values)
        return x + self.feed_forward(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self, layers, embedding, places):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(embedding.shape[1])
        self.embedding, self.places = nn.Parameter(embedding), nn.Parameter(places)

    def forward(self, tokens, keys, values):
        x = F.embedding(tokens, self.embedding) + self.places
        for at, layer in enumerate(self.layers):
            x = layer(x, keys[at], values[at])
        return F.linear(self.norm(x[:, -1]), self.embedding)


def arguments(case, make):
    """Make the module of a case, its tokens and its cache."""
    tokens, keys, values, embedding, up = case.inputs
    layers, _, heads, _, head = keys.shape
    width, hidden = up.shape[-2:]

    def linear(inputs, outputs):
        made = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
        made.weight = nn.Parameter(make.normal((outputs, inputs), up.dtype) * inputs**-0.5)
        return made

    def feed_forward():
        if len(up.shape) == 4:
            return Mixture(linear, width, hidden, up.shape[1], tokens.numel)
        return Dense(linear, width, hidden)

    made = [
        Layer(Attention(linear, width, heads, head), feed_forward(), width) for _ in range(layers)
    ]
    table = make.normal(embedding.shape, embedding.dtype)
    places = make.normal((tokens.shape[1], width), embedding.dtype)
    module = Decoder(made, table, places).eval().requires_grad_(False)
    of_layers = (make.normal(slot.shape, slot.dtype) for slot in (keys, values))
    return Call(module, make.integers(tokens.shape, tokens.dtype, 0, table.shape[0]), *of_layers)


def call(module, tokens, keys, values):
    return module(tokens, keys, values)


CACHE = "[layers, batch, heads, context, head]"
DECODER = Operator(
    "Decoder",
    f"tokens INT64[batch, new], keys T:float{CACHE}, values T{CACHE}, embedding T[vocab, width], "
    "up T[layers, width, hidden] -> logits T[batch, vocab]",
    call,
    build=arguments,
    is_pass=True,
    examples=["2,1;2,2,2,8,16;2,2,2,8,16;64,32;2,32,64 i64;f32;f32;f32;f32"],
)
MIXTURE_DECODER = Operator(
    "MixtureDecoder",
    f"tokens INT64[batch, new], keys T:float{CACHE}, values T{CACHE}, embedding T[vocab, width], "
    "up T[layers, experts, width, hidden] -> logits T[batch, vocab]",
    call,
    build=arguments,
    is_pass=True,
    examples=["2,1;2,2,2,8,16;2,2,2,8,16;64,32;2,4,32,64 i64;f32;f32;f32;f32"],
)
