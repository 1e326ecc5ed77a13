"""Models written as users write them, without a thought of overt."""

import torch
from torch import nn
from torch.nn import functional


def mlp():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(32, 32),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(32, 10),
    )


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.drop = nn.Dropout2d(0.1)

    def forward(self, x):
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.drop(out)
        out = self.bn2(self.conv2(out))
        out += x
        return functional.relu(out)


class ResidualNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.block1, self.block2 = Block(8), Block(8)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        x = self.block2(self.pool(self.block1(self.stem(x))))
        x = functional.adaptive_avg_pool2d(x, 1)
        x = torch.flatten(x, 1)
        return self.fc(self.dropout(x))


class Transformer(nn.Module):
    """Rows of an image as tokens; torch's own encoder layers, functional dropout, log_softmax."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.position = nn.Parameter(torch.randn(8, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = functional.dropout(self.embed(x[:, 0]) + self.position, 0.1, self.training)
        x = self.norm(self.encoder(x).mean(1))
        return functional.log_softmax(self.head(self.drop(x)), dim=-1)


class Branching(nn.Module):
    """Control flow that depends on the data, which symbolic tracing cannot follow."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.drop = (
            nn.Linear(64, 16),
            nn.Linear(16, 10),
            nn.Dropout(0.4),
        )

    def forward(self, x):
        h = self.first(x.flatten(1))
        h = h.relu() if h.sum() > 0 else h.tanh()
        return self.last(self.drop(h))


def batches(*arrays, size=100):
    return list(zip(*(a.split(size) for a in arrays), strict=True))


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))


def numbers(n=200, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(n, 5)
    return x, torch.tanh(x[:, :3]) + 0.1 * torch.randn(n, 3)


X, Y = numbers(20)
