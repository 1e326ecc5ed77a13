"""Networks as people write them, each with an example and what must be said about it."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        h = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(x + self.norm2(self.conv2(h)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.blocks(self.stem(x)).mean((2, 3)))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)
        self.c, self.out = nn.Conv2d(8, 6, 1), nn.Linear(6 * 4, 3)

    def forward(self, x):
        a = torch.relu(self.a(x))
        b = torch.relu(self.b(torch.cat([x, a], 1)))
        h = functional.max_pool2d(torch.relu(self.c(torch.cat((a, b), dim=1))), 2)
        return self.out(torch.flatten(h, 1))


class Squeeze(nn.Module):
    """Channels scaled by a gate of their own, depth-wise convolution, learned scale."""

    def __init__(self):
        super().__init__()
        self.first, self.deep = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3, groups=8)
        self.down, self.up = nn.Linear(16, 4), nn.Linear(4, 16)
        self.scale = nn.Parameter(torch.rand(16, 1, 1))
        self.act, self.out = nn.PReLU(16), nn.Linear(16, 3)

    def forward(self, x):
        h = self.act(self.deep(torch.relu(self.first(x))))
        gate = torch.sigmoid(self.up(torch.relu(self.down(h.mean(dim=[2, 3])))))
        h = h * gate[:, :, None, None] * self.scale
        return self.out(functional.adaptive_avg_pool2d(h, 1).view(h.shape[0], -1))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.out = (
            nn.Linear(5, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        h = torch.relu(self.first(x))
        for _ in range(2):
            h = torch.relu(self.again(h))
        return self.out(h)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.words(x))).sum(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(11, 8), nn.Parameter(torch.randn(1, 4, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layers(self.words(x) + self.place)[:, 0])


class Attention(nn.Module):
    """Written by hand, pre-norm: heads are split by view, the hidden layer is free."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.back = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        n, t, c = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        )
        h = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.back(h.transpose(1, 2).reshape(n, t, c))
        x = x + self.down(
            functional.dropout(functional.gelu(self.up(self.norm2(x))), 0.1, False)
        )
        return self.out(x[:, 0])


class Stream(nn.Module):
    """A residual stream of features with layer normalization, tokens along axis 1."""

    def __init__(self):
        super().__init__()
        self.enter, self.norm = nn.Linear(5, 8), nn.LayerNorm(8)
        self.up, self.down, self.out = (
            nn.Linear(8, 12),
            nn.Linear(12, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        h = self.enter(x)
        h = h + self.down(torch.relu(self.up(self.norm(h))))
        return self.out(h.transpose(1, 2).mean(-1))


class HardCoded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.out = (
            nn.Conv2d(1, 4, 3),
            nn.Linear(16, 6),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        h = functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.out(torch.relu(self.fc(h.view(-1, 16))))


class Branching(nn.Module):
    """The forward pass depends on values, but its parts can be traced."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 5))
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        h = self.inner(x)
        if h.sum() > 1e9:
            h = -h
        return self.out(h)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 8), nn.Linear(3, 8), nn.Linear(8, 3)

    def forward(self, x, y, scale=None):
        h = torch.relu(self.a(x) + self.b(y))
        return self.out(h if scale is None else h * scale)


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(5, 16), nn.Linear(8, 3)

    def forward(self, x):
        a, gate = self.up(x).chunk(2, -1)
        return self.down(a * torch.sigmoid(gate))


class Mixer(nn.Module):
    """A layer along tokens, which costs the less the fewer channels there are."""

    def __init__(self):
        super().__init__()
        self.enter, self.tokens, self.out = (
            nn.Linear(5, 16),
            nn.Linear(40, 40),
            nn.Linear(16, 3),
        )

    def forward(self, x):
        h = self.enter(x)
        return self.out((h + self.tokens(h.mT).mT).mean(1))


class Odd(nn.Module):
    """Arguments by name, and axes moved about."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 3), nn.Linear(8, 6)
        self.c, self.d, self.out = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x):
        h = functional.relu(input=self.a(x)).permute(0, 2, 3, 1)
        h = self.b(h.flatten(1, 2)).unsqueeze(1)[:, 0, ..., :].squeeze()
        h = torch.relu(self.c(torch.softmax(h, dim=1).amax(1)))
        return self.out(torch.cat(tensors=[self.d(h), h[:, :4]], dim=1))


class Heads(nn.Module):
    """Attention as people write it: separate maps, one for all three, torch's own, by einsum."""

    def __init__(self, kind, width=16, heads=4):
        super().__init__()
        self.kind, self.num_heads, self.head_dim = kind, heads, width // heads
        self.attn_dim = width
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 40),
            nn.Linear(40, width),
        )
        if kind == "torch":
            self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        elif kind == "fused":
            self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        else:
            shared = heads // 2 if kind == "grouped queries" else heads
            self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
            self.k = nn.Linear(width, shared * self.head_dim)
            self.v = nn.Linear(width, shared * self.head_dim)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        B, T, _ = x.shape
        h = self.norm(x)
        if self.kind == "torch":
            h = self.attend(h, h, h, need_weights=False)[0]
            return self.out((x + h + self.down(functional.gelu(self.up(h)))).mean(1))
        if self.kind == "fused":
            shape = (B, T, 3, self.num_heads, self.head_dim)
            q, k, v = self.qkv(h).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (
                layer(h).view(B, T, -1, self.head_dim).transpose(1, 2)
                for layer in (self.q, self.k, self.v)
            )
        if self.kind == "einsum":
            weights = (
                torch.einsum("bhqd,bhkd->bhqk", q, k)
                .div(self.head_dim**0.5)
                .softmax(-1)
            )
            h = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        elif self.kind == "by hand":
            weights = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1)
            h = weights @ v
        else:
            grouped = self.kind == "grouped queries"
            h = functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)
        h = self.o(h.transpose(1, 2).reshape(B, T, self.attn_dim))
        return self.out((x + h + self.down(functional.gelu(self.up(h)))).mean(1))


def mlp(drop=0.5):
    return nn.Sequential(
        nn.Linear(5, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(16, 12),
        nn.Tanh(),
        nn.Dropout(drop),
        nn.Linear(12, 3),
    )


def autoencoder():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.GroupNorm(1, 8),
        nn.GELU(),
        nn.Conv2d(8, 6, 1),
        nn.InstanceNorm2d(6, affine=True),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 8, 2, stride=2),
        nn.SiLU(),
        nn.Conv2d(8, 1, 3, padding=1),
    )


def line():
    return nn.Sequential(
        nn.Conv1d(2, 8, 3),
        nn.ReLU(),
        nn.Dropout1d(0.3),
        nn.MaxPool1d(2),
        nn.Conv1d(8, 6, 2),
        nn.Flatten(),
        nn.Linear(6 * 3, 3),
    )


def grouped():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


def norm_groups():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.GroupNorm(4, 16),
        nn.GLU(1),
        nn.Flatten(),
        nn.Linear(8 * 16, 3),
    )


def bag():
    return nn.Sequential(nn.EmbeddingBag(11, 8), nn.Tanh(), nn.Linear(8, 3))


def parametrized():
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 8))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def floats(*shape):
    return lambda: torch.randn(6, *shape)


def words(length):
    return lambda: torch.randint(11, (6, length))


# builder, example, layers that lose units, layers left whole with a word of the reason
ZOO = {
    "mlp": (mlp, floats(5), {"0", "4"}, {"7": "returns"}),
    "residual": (
        Residual,
        floats(1, 6, 6),
        {
            "stem",
            "blocks.0.conv2",
            "blocks.1.conv2",
            "blocks.0.conv1",
            "blocks.1.conv1",
        },
        {"out": "returns"},
    ),
    "dense": (Dense, floats(2, 4, 4), {"a", "b", "c"}, {"out": "returns"}),
    "squeeze": (
        Squeeze,
        floats(1, 8, 8),
        {"first", "deep", "up", "down"},
        {"out": "returns"},
    ),
    "shared": (Shared, floats(5), {"first", "again"}, {"out": "returns"}),
    "tied": (Tied, words(4), {"words", "mix"}, {}),
    "transformer": (
        Transformer,
        words(4),
        {"words"}
        | {
            f"layers.layers.{i}.{part}"
            for i in range(2)
            for part in (
                "linear1",
                "linear2",
                "self_attn.out_proj",
                "self_attn.q",
                "self_attn.k",
            )
        }
        | {f"layers.layers.{i}.self_attn.v" for i in range(2)},
        {"out": "returns"},
    ),
    "attention": (
        Attention,
        floats(4, 8),
        {"up"},
        {"qkv": "fails with fewer units", "back": "", "down": ""},
    ),
    "stream": (Stream, floats(4, 5), {"enter", "down", "up"}, {"out": "returns"}),
    "hard-coded": (
        HardCoded,
        floats(1, 6, 6),
        {"fc"},
        {"conv": "fails with fewer units"},
    ),
    "branching": (
        Branching,
        floats(5),
        {"inner.0"},
        {
            "Branching": "depends on values",
            "inner.2": "go where the forward pass depends",
        },
    ),
    "two-inputs": (
        TwoInputs,
        lambda: (torch.randn(6, 4), torch.randn(6, 3)),
        {"a", "b"},
        {"out": "returns"},
    ),
    "odd": (
        Odd,
        floats(1, 6, 6),
        {"a", "b", "d"},
        {"c": "with fewer units", "out": "returns"},
    ),
    "chunked": (Chunked, floats(5), {"up"}, {"down": "returns"}),
    "autoencoder": (autoencoder, floats(1, 6, 6), {"0", "3", "6"}, {"8": "returns"}),
    "line": (line, floats(2, 10), {"0", "4"}, {"6": "returns"}),
    "grouped": (grouped, floats(1, 6, 6), {"0", "2"}, {"4": "returns"}),
    "mixer": (Mixer, floats(40, 5), {"enter"}, {"tokens": "another axis"}),
    "norm-groups": (norm_groups, floats(1, 6, 6), {"0"}, {"4": "returns"}),
    "bag": (bag, words(4), {"0"}, {"2": "returns"}),
    "parametrized": (parametrized, floats(5), {"2"}, {"0": "parametrized"}),
}


def build(name, seed=0):
    """Return a network of the zoo in evaluation mode, with statistics that matter, and inputs."""
    builder, example, *_ = ZOO[name]
    torch.manual_seed(seed)
    model = builder()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    inputs = example()
    return model.eval(), inputs if isinstance(inputs, tuple) else (inputs,)
