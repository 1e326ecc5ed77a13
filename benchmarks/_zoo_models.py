"""The zoo: networks that people write and bring, small, with random weights and noise all over.

Each entry gives (model, inputs, output). Nothing is downloaded: timm's and transformers' networks
are built from configurations.
"""
# ruff: noqa: S311

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional

ROWS = 4


class Net(nn.Module):
    """A forward pass written as a function of the module and its inputs."""

    def __init__(self, run: Any, **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


@dataclass
class Answer:
    logits: Any
    hidden: Any = None


class DropPath(nn.Module):
    """Stochastic depth as people write it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        keep = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= self.p
        return x * keep / (1 - self.p)


class GaussianNoise(nn.Module):
    def __init__(self, sd: float, *, times: bool) -> None:
        super().__init__()
        self.sd, self.times = sd, times

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        return (
            x * (1 + self.sd * torch.randn_like(x))
            if self.times
            else x + self.sd * torch.randn_like(x)
        )


def _flat(n: int = 20) -> Any:
    return torch.randn(ROWS, n)


def _image(side: int = 16, channels: int = 3) -> Any:
    return torch.randn(ROWS, channels, side, side)


def _tokens(n: int = 10, vocabulary: int = 60) -> Any:
    return torch.randint(1, vocabulary, (ROWS, n))


def _mlp(*noises: Any, width: int = 64, activation: Any = nn.ReLU) -> Any:
    sizes = [20] + [width] * len(noises)
    parts = []
    for a, b, noise in zip(sizes, sizes[1:], noises, strict=False):
        parts += [nn.Linear(a, b), activation(), noise]
    return nn.Sequential(*parts, nn.Linear(width, 5))


def _residual(drop: Any, blocks: int = 4, width: int = 48) -> Any:
    def run(self: Any, x: Any) -> Any:
        h = self.first(x)
        for block, noise in zip(self.blocks, self.noises, strict=True):
            h = h + noise(block(h))
        return self.last(torch.relu(h))

    def block() -> Any:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width)
        )

    return Net(
        run,
        first=nn.Linear(20, width),
        last=nn.Linear(width, 5),
        blocks=nn.ModuleList(block() for _ in range(blocks)),
        noises=nn.ModuleList(drop() for _ in range(blocks)),
    )


def _skipping() -> Any:
    def run(self: Any, x: Any) -> Any:
        h = torch.relu(self.first(x))
        for block in self.blocks:
            if self.training and torch.rand(()) < 0.2:
                continue
            h = h + functional.dropout(torch.relu(block(h)), 0.2, self.training)
        return self.last(h)

    return Net(
        run,
        first=nn.Linear(20, 48),
        last=nn.Linear(48, 5),
        blocks=nn.ModuleList(nn.Linear(48, 48) for _ in range(3)),
    )


def _python_coin() -> Any:
    def run(self: Any, x: Any) -> Any:
        h = torch.relu(self.first(x))
        for block in self.blocks:
            if not self.training or random.random() > 0.2:
                h = h + torch.relu(block(h))
        return self.last(h)

    return Net(
        run,
        first=nn.Linear(20, 48),
        last=nn.Linear(48, 5),
        blocks=nn.ModuleList(nn.Linear(48, 48) for _ in range(3)),
    )


def _functional() -> Any:
    def run(self: Any, x: Any) -> Any:
        h = self.first(x)
        for i, layer in enumerate(self.layers):
            h = torch.relu(layer(h))
            if i % 2 == 0 and h.mean() > -1e9:
                h = functional.dropout(h, 0.3, training=self.training)
        return self.last(self.d(h))

    return Net(
        run,
        first=nn.Linear(20, 64),
        last=nn.Linear(64, 5),
        d=nn.Dropout(0.2),
        layers=nn.ModuleList(nn.Linear(64, 64) for _ in range(3)),
    )


def _sdpa() -> Any:
    def run(self: Any, x: Any) -> Any:
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (
                t.unflatten(-1, (4, 8)).transpose(1, 2) for t in qkv(x).chunk(3, -1)
            )
            p = 0.2 if self.training else 0.0
            h = functional.scaled_dot_product_attention(q, k, v, dropout_p=p)
            x = x + out(h.transpose(1, 2).flatten(2))
        return self.last(x.mean(1))

    return Net(
        run,
        qkv=nn.ModuleList(nn.Linear(32, 96) for _ in range(2)),
        last=nn.Linear(32, 5),
        out=nn.ModuleList(nn.Linear(32, 32) for _ in range(2)),
    )


def _cnn(*parts: Any, channels: int = 16) -> Any:
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(channels * 4, 5)
    )


def _conv(a: int, b: int) -> Any:
    return nn.Conv2d(a, b, 3, padding=1)


def _group_norm() -> Any:
    return _cnn(
        _conv(3, 16),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        _conv(16, 16),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        _conv(16, 16),
        nn.ReLU(),
    )


def _recurrent(kind: Any, layers: int = 2) -> Any:
    def run(self: Any, ids: Any) -> Any:
        h, _ = self.rnn(self.d(self.e(ids)))
        return self.last(self.d(h[:, -1]))

    return Net(
        run,
        e=nn.Embedding(60, 24),
        d=nn.Dropout(0.3),
        last=nn.Linear(24, 5),
        rnn=kind(24, 24, layers, dropout=0.3, batch_first=True),
    )


def _weights() -> Any:
    def run(self: Any, x: Any) -> Any:
        h = torch.relu(self.a(x))
        w = functional.dropout(self.b.weight, 0.3, self.training)
        return self.c(torch.relu(functional.linear(h, w, self.b.bias)))

    return Net(run, a=nn.Linear(20, 64), b=nn.Linear(64, 64), c=nn.Linear(64, 5))


def _two_inputs() -> Any:
    def run(self: Any, ids: Any, numbers: Any) -> Any:
        h = torch.cat([self.d(self.e(ids)).mean(1), torch.relu(self.a(numbers))], 1)
        h = self.d(torch.relu(self.b(h)))
        return Answer(self.c(h), h)

    return Net(
        run,
        e=nn.Embedding(60, 16),
        a=nn.Linear(6, 16),
        b=nn.Linear(32, 48),
        c=nn.Linear(48, 5),
        d=nn.Dropout(0.3),
    )


class Lightning(nn.Module):
    """As a LightningModule is written: hyperparameters, a net inside, other steps beside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _mlp(nn.Dropout(0.3), nn.Dropout(0.3), activation=nn.SiLU)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: Any) -> Any:
        return functional.log_softmax(self.net(x), -1)

    def training_step(self, batch: Any, _: int) -> Any:
        return self.loss(self(batch[0]), batch[1])


def _gated() -> Any:
    def run(self: Any, x: Any) -> Any:
        h = self.d(self.a(x))
        h = torch.sigmoid(self.g(h)) * torch.tanh(self.b(h)) + h
        return self.c(self.d(h))

    return Net(
        run,
        a=nn.Linear(20, 48),
        b=nn.Linear(48, 48),
        g=nn.Linear(48, 48),
        c=nn.Linear(48, 5),
        d=nn.Dropout(0.2),
    )


def _encoder(*, first: bool) -> Any:
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=first
    )
    return Net(
        lambda s, x: s.c(s.e(x).mean(1)),
        c=nn.Linear(32, 5),
        e=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
    )


def _unet() -> Any:
    def run(self: Any, x: Any) -> Any:
        a = self.d(torch.relu(self.down1(x)))
        b = self.d(torch.relu(self.down2(functional.max_pool2d(a, 2))))
        up = functional.interpolate(
            b, scale_factor=2, mode="bilinear", align_corners=False
        )
        return self.out(torch.relu(self.up(torch.cat([a, up], 1)))).mean((2, 3))

    return Net(
        run,
        down1=_conv(3, 12),
        down2=_conv(12, 24),
        up=_conv(36, 12),
        out=_conv(12, 5),
        d=nn.Dropout2d(0.1),
    )


def _shake() -> Any:
    """Shake-shake: two branches weighed by a uniform number for each row."""

    def run(self: Any, x: Any) -> Any:
        h = torch.relu(self.a(x))
        w = torch.rand(len(h), 1) if self.training else 0.5
        return self.c(h + w * torch.relu(self.b(h)) + (1 - w) * torch.relu(self.g(h)))

    return Net(
        run,
        a=nn.Linear(20, 48),
        b=nn.Linear(48, 48),
        g=nn.Linear(48, 48),
        c=nn.Linear(48, 5),
    )


def _sorting() -> Any:
    def run(self: Any, x: Any) -> Any:
        h = self.d(torch.relu(self.a(x)))
        top = h.sort(-1, descending=True).values[:, :12]
        return self.c(torch.relu(self.b(top)))

    return Net(
        run,
        a=nn.Linear(20, 48),
        b=nn.Linear(12, 48),
        c=nn.Linear(48, 5),
        d=nn.Dropout(0.2),
    )


def _half() -> Any:
    return _mlp(nn.Dropout(0.3), nn.Dropout(0.3)).bfloat16(), _flat().bfloat16(), None


HAND = {
    "MLP, three dropouts": lambda: (
        _mlp(*(nn.Dropout(0.3) for _ in range(3))),
        _flat(),
        None,
    ),
    "MLP, GELU, LayerNorm": lambda: (
        nn.Sequential(
            nn.Linear(20, 64),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.LayerNorm(64),
            nn.Linear(64, 64),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.LayerNorm(64),
            nn.Linear(64, 5),
        ),
        _flat(),
        None,
    ),
    "MLP, AlphaDropout": lambda: (
        _mlp(nn.AlphaDropout(0.1), nn.AlphaDropout(0.1), activation=nn.SELU),
        _flat(),
        None,
    ),
    "MLP, RReLU": lambda: (
        nn.Sequential(
            nn.Linear(20, 64),
            nn.RReLU(),
            nn.Linear(64, 64),
            nn.RReLU(),
            nn.Linear(64, 5),
        ),
        _flat(),
        None,
    ),
    "MLP, Gaussian noise": lambda: (
        _mlp(GaussianNoise(0.3, times=True), GaussianNoise(0.3, times=False)),
        _flat(),
        None,
    ),
    "stochastic depth": lambda: (_residual(lambda: DropPath(0.3)), _flat(), None),
    "residual, dropout": lambda: (_residual(lambda: nn.Dropout(0.2)), _flat(), None),
    "layers skipped by a coin": lambda: (_skipping(), _flat(), None),
    "skipped by Python's coin": lambda: (_python_coin(), _flat(), None),
    "functional, control flow": lambda: (_functional(), _flat(), None),
    "attention, sdpa": lambda: (_sdpa(), torch.randn(ROWS, 8, 32), None),
    "encoder, norm first": lambda: (
        _encoder(first=True),
        torch.randn(ROWS, 8, 32),
        None,
    ),
    "encoder, norm last": lambda: (
        _encoder(first=False),
        torch.randn(ROWS, 8, 32),
        None,
    ),
    "CNN, Dropout2d, GroupNorm": lambda: (_group_norm(), _image(), None),
    "CNN, Dropout2d, BatchNorm": lambda: (
        _cnn(
            _conv(3, 16),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Dropout2d(0.2),
            _conv(16, 16),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout2d(0.2),
            _conv(16, 16),
            nn.ReLU(),
        ),
        _image(),
        None,
    ),
    "CNN, dropout, max pooling": lambda: (
        _cnn(
            _conv(3, 16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.MaxPool2d(2),
            _conv(16, 16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.MaxPool2d(2),
        ),
        _image(),
        None,
    ),
    "U-net": lambda: (_unet(), _image(), None),
    "LSTM": lambda: (_recurrent(nn.LSTM), _tokens(), None),
    "GRU": lambda: (_recurrent(nn.GRU), _tokens(), None),
    "dropout on weights": lambda: (_weights(), _flat(), None),
    "two inputs, dataclass": lambda: (
        _two_inputs(),
        {"ids": _tokens(), "numbers": torch.randn(ROWS, 6)},
        lambda o: o.logits,
    ),
    "as in Lightning": lambda: (Lightning(), _flat(), None),
    "gated": lambda: (_gated(), _flat(), None),
    "shake-shake": lambda: (_shake(), _flat(), None),
    "sorted": lambda: (_sorting(), _flat(), None),
    "bfloat16": _half,
    "compiled": lambda: (
        torch.compile(_mlp(nn.Dropout(0.3), nn.Dropout(0.3)), backend="eager"),
        _flat(),
        None,
    ),
    "DataParallel": lambda: (
        nn.DataParallel(_mlp(nn.Dropout(0.3), nn.Dropout(0.3))),
        _flat(),
        None,
    ),
}


def _timm(name: str, side: int = 64, **options: Any) -> Any:
    def build() -> Any:
        import timm

        if "." in name:  # a class, where the named networks are too large
            module, kind = name.split(".")
            maker = getattr(import_module(f"timm.models.{module}"), kind)
            return maker(num_classes=5, **options), _image(side), None
        model = timm.create_model(name, num_classes=5, **options)
        return model, _image(side), None

    return build


_VIT = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 3,
    "drop_rate": 0.1,
    "proj_drop_rate": 0.1,
    "attn_drop_rate": 0.1,
    "drop_path_rate": 0.1,
}
TIMM = {
    "timm ViT": _timm("vit_tiny_patch16_224", 32, **_VIT),
    "timm DeiT": _timm("deit_tiny_patch16_224", 32, **_VIT),
    "timm BEiT": _timm("beit_base_patch16_224", 32, **_VIT),
    "timm EVA-02": _timm("eva02_tiny_patch14_224", 32, **_VIT),
    "timm CaiT": _timm("cait_xxs24_224", 32, **{**_VIT, "depth": 2}),
    "timm Mixer": _timm(
        "mlp_mixer.MlpMixer",
        32,
        img_size=32,
        patch_size=8,
        embed_dim=48,
        num_blocks=3,
        drop_rate=0.1,
        proj_drop_rate=0.1,
        drop_path_rate=0.1,
    ),
    "timm Swin": _timm(
        "swin_tiny_patch4_window7_224",
        32,
        img_size=32,
        patch_size=2,
        window_size=4,
        embed_dim=24,
        depths=(2, 2),
        num_heads=(2, 4),
        drop_rate=0.1,
        proj_drop_rate=0.1,
        attn_drop_rate=0.1,
        drop_path_rate=0.1,
    ),
    "timm ConvNeXt": _timm(
        "convnext_atto",
        32,
        depths=(1, 1, 2, 1),
        dims=(16, 32, 48, 64),
        drop_rate=0.2,
        drop_path_rate=0.2,
        ls_init_value=1.0,
    ),
    "timm ResNet": _timm(
        "resnet18",
        32,
        layers=(1, 1, 1, 1),
        channels=(16, 32, 48, 64),
        drop_rate=0.3,
        drop_path_rate=0.1,
    ),
    "timm ResNet, DropBlock": _timm(
        "resnet18",
        64,
        layers=(1, 1, 1, 1),
        channels=(16, 32, 48, 64),
        drop_rate=0.2,
        drop_block_rate=0.1,
    ),
    "timm EfficientNet": _timm(
        "efficientnet_lite0", 32, drop_rate=0.2, drop_path_rate=0.2
    ),
    "timm MobileNetV3": _timm(
        "mobilenetv3_small_050", 32, drop_rate=0.2, drop_path_rate=0.2
    ),
    "timm RegNet": _timm("regnetx_002", 32, drop_rate=0.2, drop_path_rate=0.2),
    "timm DenseNet": _timm(
        "densenet121",
        32,
        growth_rate=8,
        block_config=(2, 2, 2),
        drop_rate=0.2,
        proj_drop_rate=0.1,
    ),
    "timm PoolFormer": _timm(
        "poolformer_s12", 32, drop_rate=0.1, proj_drop_rate=0.1, drop_path_rate=0.1
    ),
    "timm PVT v2": _timm(
        "pvt_v2_b0",
        64,
        depths=(1, 1, 1, 1),
        drop_rate=0.1,
        proj_drop_rate=0.1,
        attn_drop_rate=0.1,
        drop_path_rate=0.1,
    ),
    "timm ConvMixer": _timm(
        "convmixer.ConvMixer",
        32,
        dim=32,
        depth=3,
        kernel_size=3,
        patch_size=4,
        drop_rate=0.2,
    ),
    "timm MobileViT": _timm("mobilevit_xxs", 64, drop_rate=0.1, drop_path_rate=0.1),
}


def _hugging(
    model: str, config: str, *, inputs: Any = None, output: Any = None, **options: Any
) -> Any:
    def build() -> Any:
        import transformers

        transformers.logging.set_verbosity_error()
        made = getattr(transformers, config)(num_labels=5, **options)
        net = getattr(transformers, model)(made)
        given = {
            "input_ids": _tokens(),
            "attention_mask": torch.ones(ROWS, 10, dtype=torch.long),
        }
        return (
            net,
            given if inputs is None else inputs(),
            output or (lambda o: o.logits),
        )

    return build


_TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
_GPT = {
    "vocab_size": 60,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 40,
    "pad_token_id": 0,
}
_PIXELS = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_ENCDEC = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 40,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
}


def _pictures() -> Any:
    return {"pixel_values": _image(32)}


def _sound() -> Any:
    return {"input_values": torch.randn(ROWS, 800)}


def _spectrogram() -> Any:
    return {"input_features": torch.randn(ROWS, 16, 40)}


def _ended() -> Any:
    ids = _tokens(10, 59)
    ids[:, -1] = 2
    ids[:, :-1][ids[:, :-1] == 2] = 3
    return {"input_ids": ids}


HUGGING = {
    "HF BERT": _hugging("BertForSequenceClassification", "BertConfig", **_TEXT),
    "HF RoBERTa": _hugging(
        "RobertaForSequenceClassification", "RobertaConfig", **_TEXT
    ),
    "HF DistilBERT": _hugging(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        vocab_size=60,
        dim=32,
        n_layers=3,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=40,
        seq_classif_dropout=0.2,
    ),
    "HF ALBERT": _hugging(
        "AlbertForSequenceClassification",
        "AlbertConfig",
        **{
            **_TEXT,
            "embedding_size": 16,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        },
    ),
    "HF ELECTRA": _hugging(
        "ElectraForSequenceClassification", "ElectraConfig", embedding_size=16, **_TEXT
    ),
    "HF DeBERTa v2": _hugging(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        **_TEXT,
    ),
    "HF MPNet": _hugging("MPNetForSequenceClassification", "MPNetConfig", **_TEXT),
    "HF GPT-2": _hugging("GPT2ForSequenceClassification", "GPT2Config", **_GPT),
    "HF OPT": _hugging(
        "OPTForSequenceClassification",
        "OPTConfig",
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=64,
        dropout=0.1,
        max_position_embeddings=40,
        word_embed_proj_dim=32,
        attention_dropout=0.1,
        pad_token_id=0,
    ),
    "HF LLaMA": _hugging(
        "LlamaForSequenceClassification",
        "LlamaConfig",
        attention_dropout=0.2,
        pad_token_id=0,
        **_TEXT,
    ),
    "HF T5": _hugging(
        "T5ForSequenceClassification",
        "T5Config",
        inputs=_ended,
        vocab_size=60,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        eos_token_id=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    ),
    "HF BART": _hugging(
        "BartForSequenceClassification", "BartConfig", inputs=_ended, **_ENCDEC
    ),
    "HF XLNet": _hugging(
        "XLNetForSequenceClassification",
        "XLNetConfig",
        vocab_size=60,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=64,
    ),
    "HF BLOOM": _hugging(
        "BloomForSequenceClassification",
        "BloomConfig",
        vocab_size=60,
        hidden_size=32,
        n_layer=3,
        n_head=4,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        pad_token_id=0,
    ),
    "HF ViT": _hugging(
        "ViTForImageClassification", "ViTConfig", inputs=_pictures, **_PIXELS
    ),
    "HF DeiT": _hugging(
        "DeiTForImageClassification", "DeiTConfig", inputs=_pictures, **_PIXELS
    ),
    "HF Swin": _hugging(
        "SwinForImageClassification",
        "SwinConfig",
        inputs=_pictures,
        image_size=32,
        patch_size=2,
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        drop_path_rate=0.1,
    ),
    "HF ConvNeXt": _hugging(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        inputs=_pictures,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        drop_path_rate=0.2,
        layer_scale_init_value=1.0,
    ),
    "HF SegFormer": _hugging(
        "SegformerForImageClassification",
        "SegformerConfig",
        inputs=_pictures,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 24, 32, 48],
        drop_path_rate=0.1,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    ),
    "HF SqueezeBERT": _hugging(
        "SqueezeBertForSequenceClassification",
        "SqueezeBertConfig",
        embedding_size=32,
        **_TEXT,
    ),
    "HF GPT-NeoX": _hugging(
        "GPTNeoXForSequenceClassification",
        "GPTNeoXConfig",
        hidden_dropout=0.1,
        attention_dropout=0.1,
        pad_token_id=0,
        **_TEXT,
    ),
    "HF Funnel": _hugging(
        "FunnelForSequenceClassification",
        "FunnelConfig",
        vocab_size=60,
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
        block_sizes=[1, 1],
        num_decoder_layers=1,
    ),
    "HF wav2vec 2": _hugging(
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        inputs=_sound,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16),
        conv_stride=(5, 4),
        conv_kernel=(10, 8),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=2,
        apply_spec_augment=False,
        classifier_proj_size=16,
    ),
    "HF GPT-Neo": _hugging(
        "GPTNeoForSequenceClassification",
        "GPTNeoConfig",
        vocab_size=60,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=64,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=40,
        embed_dropout=0.1,
        resid_dropout=0.1,
        attention_dropout=0.1,
        pad_token_id=0,
    ),
    "HF T5 encoder": _hugging(
        "T5EncoderModel",
        "T5Config",
        vocab_size=60,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        output=lambda o: o.last_hidden_state[:, 0, :5],
    ),
    "HF Whisper": _hugging(
        "WhisperForAudioClassification",
        "WhisperConfig",
        inputs=_spectrogram,
        num_mel_bins=16,
        max_source_positions=20,
        dropout=0.1,
        classifier_proj_size=16,
        **{k: v for k, v in _ENCDEC.items() if k != "max_position_embeddings"},
    ),
    "HF CLIP text": _hugging(
        "CLIPTextModelWithProjection",
        "CLIPTextConfig",
        attention_dropout=0.1,
        projection_dim=16,
        bos_token_id=1,
        eos_token_id=2,
        **_TEXT,
        output=lambda o: o.text_embeds[:, :5],
    ),
    "HF DeBERTa": _hugging(
        "DebertaForSequenceClassification",
        "DebertaConfig",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        **_TEXT,
    ),
    "HF Mistral": _hugging(
        "MistralForSequenceClassification",
        "MistralConfig",
        pad_token_id=0,
        attention_dropout=0.2,
        num_key_value_heads=2,
        **_TEXT,
    ),
    "HF CTRL": _hugging(
        "CTRLForSequenceClassification",
        "CTRLConfig",
        vocab_size=60,
        n_positions=40,
        n_embd=32,
        dff=64,
        n_layer=2,
        n_head=4,
        pad_token_id=0,
    ),
    "HF ConvBERT": _hugging(
        "ConvBertForSequenceClassification",
        "ConvBertConfig",
        embedding_size=16,
        **_TEXT,
    ),
    "HF RoFormer": _hugging(
        "RoFormerForSequenceClassification",
        "RoFormerConfig",
        embedding_size=32,
        **_TEXT,
    ),
    "HF Nystromformer": _hugging(
        "NystromformerForSequenceClassification",
        "NystromformerConfig",
        num_landmarks=5,
        segment_means_seq_len=10,
        **_TEXT,
    ),
    "HF mBART": _hugging(
        "MBartForSequenceClassification", "MBartConfig", inputs=_ended, **_ENCDEC
    ),
    "HF BEiT": _hugging(
        "BeitForImageClassification",
        "BeitConfig",
        inputs=_pictures,
        drop_path_rate=0.1,
        **_PIXELS,
    ),
}

ZOO = {**HAND, **TIMM, **HUGGING}
SHARED = (
    "dropout on weights",
    "layers skipped by a coin",
    "skipped by Python's coin",
    "timm ResNet, DropBlock",
    "HF wav2vec 2",
)
"""Networks in which rows of a batch share a draw, which are sampled pass by pass."""


def built(name: str) -> tuple[Any, Any, Any]:
    """Return a network of the zoo, its inputs and what picks its output, always the same."""
    torch.manual_seed(sum(map(ord, name)))
    model, inputs, output = ZOO[name]()
    with torch.no_grad():
        for parameter in model.parameters():  # random weights that do something
            if parameter.ndim > 1 and float(parameter.std()) < 0.05:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            elif not bool(parameter.any()):
                nn.init.normal_(parameter, std=0.1)
    return model.eval(), inputs, output
