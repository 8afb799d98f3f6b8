"""Nets of plain PyTorch with random weights, built as the models are that users bring (imported where it is installed)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def convolved(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution with its norm and activation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), nn.SiLU())


class UNet(nn.Module):
    """Down by strides, up by transposed convolutions, with what each level had beside it (Ronneberger et al. 2015)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter, self.down, self.deep = convolved(3, width), convolved(width, 2 * width), convolved(2 * width, 4 * width)
        self.up = nn.ModuleList((nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                                 nn.ConvTranspose2d(2 * width, width, 3, 2, padding=1, output_padding=1)))
        self.join = nn.ModuleList((convolved(4 * width, 2 * width), convolved(2 * width, width)))
        self.leave = nn.Conv2d(width, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = self.enter(image)
        second = self.down(functional.max_pool2d(first, 2))
        x = self.deep(functional.max_pool2d(second, 2))
        for up, join, beside in zip(self.up, self.join, (second, first)):
            x = join(torch.cat((up(x), beside), 1))
        return torch.sigmoid(self.leave(x))


class _Attention(nn.Module):
    """Attention of tokens over others."""

    def __init__(self, width: int, other: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(other, width), nn.Linear(other, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, others: Tensor) -> Tensor:
        def apart(y: Tensor) -> Tensor:
            return y.view(y.shape[0], -1, self.heads, y.shape[-1] // self.heads).transpose(1, 2)

        made = functional.scaled_dot_product_attention(apart(self.q(x)), apart(self.k(others)), apart(self.v(others)))
        return self.out(made.transpose(1, 2).reshape(x.shape))


class _Residual(nn.Module):
    """Two convolutions with the time between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)))
        self.convs = nn.ModuleList((nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)))
        self.time, self.skip = nn.Linear(time, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        made = self.convs[0](functional.silu(self.norms[0](x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.convs[1](functional.silu(self.norms[1](made))) + self.skip(x)


class _Transformed(nn.Module):
    """Attention of an image's positions over themselves, then over a text (Rombach et al. 2022)."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.own, self.cross = _Attention(width, width), _Attention(width, context)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.grow, self.shrink = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        n, c, h, w = x.shape
        tokens = self.norm(x).permute(0, 2, 3, 1).reshape(n, h * w, c)
        tokens = tokens + self.own(self.norms[0](tokens), self.norms[0](tokens))
        tokens = tokens + self.cross(self.norms[1](tokens), context)
        value, gate = self.grow(self.norms[2](tokens)).chunk(2, dim=-1)
        tokens = tokens + self.shrink(value * functional.gelu(gate))
        return x + tokens.reshape(n, h, w, c).permute(0, 3, 1, 2)


class DiffusionUNet(nn.Module):
    """What predicts the noise of a latent image at a time, beside a text."""

    def __init__(self, width: int = 16, context: int = 12) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.first, self.look = _Residual(width, width, 4 * width), _Transformed(width, context)
        self.down = nn.Conv2d(width, width, 3, 2, 1)
        self.deep, self.middle = _Residual(width, 2 * width, 4 * width), _Transformed(2 * width, context)
        self.up, self.last = nn.Conv2d(2 * width, width, 3, padding=1), _Residual(2 * width, width, 4 * width)
        self.leave = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, latent: Tensor, step: Tensor, context: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.width // 2) * (-math.log(10000.0) / (self.width // 2)))
        angles = step[:, None].float() * rates[None]
        time = self.time(torch.cat((angles.cos(), angles.sin()), -1))
        kept = self.look(self.first(self.enter(latent), time), context)
        x = self.middle(self.deep(self.down(kept), time), context)
        x = self.up(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(self.last(torch.cat((x, kept), 1), time))


class _C2f(nn.Module):
    """Halves of channels, of which one goes on through bottlenecks; all are joined."""

    def __init__(self, inputs: int, outputs: int, count: int = 1) -> None:
        super().__init__()
        self.enter, self.leave = convolved(inputs, outputs, 1), convolved((2 + count) * outputs // 2, outputs, 1)
        self.inner = nn.ModuleList(
            nn.Sequential(convolved(outputs // 2, outputs // 2), convolved(outputs // 2, outputs // 2)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for inner in self.inner:
            parts.append(parts[-1] + inner(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class _PositionAttention(nn.Module):
    """Attention over an image's positions by 1x1 convolutions, with a depthwise convolution for where they are."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.every, self.out = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)
        self.where = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q, k, v = self.every(x).view(n, self.heads, -1, h * w).split((self.size // 2, self.size // 2, self.size), 2)
        shares = (q.transpose(-2, -1) @ k * (self.size // 2) ** -0.5).softmax(-1)
        return self.out((v @ shares.transpose(-2, -1)).view(n, c, h, w) + self.where(v.reshape(n, c, h, w)))


class Yolo(nn.Module):
    """Boxes and scores of three classes at two strides, boxes by the mean of a distribution of distances."""

    def __init__(self, width: int = 16, classes: int = 3, bins: int = 8) -> None:
        super().__init__()
        self.bins, self.classes = bins, classes
        self.enter = nn.Sequential(convolved(3, width, stride=2), convolved(width, width, stride=2), _C2f(width, width))
        self.down = nn.Sequential(convolved(width, 2 * width, stride=2), _C2f(2 * width, 2 * width))
        self.pools = convolved(8 * width, 2 * width, 1)
        self.attention, self.join = _PositionAttention(2 * width), _C2f(3 * width, width)
        self.heads = nn.ModuleList(nn.Conv2d(c, 4 * bins + classes, 1) for c in (width, 2 * width))

    def forward(self, image: Tensor) -> Tensor:
        first = self.enter(image)
        x = self.down(first)
        pooled = [x]
        for _ in range(3):
            pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
        x = self.pools(torch.cat(pooled, 1))
        x = x + self.attention(x)
        first = self.join(torch.cat((functional.interpolate(x, scale_factor=2.0, mode="nearest"), first), 1))
        made = [self._decoded(head(level), stride) for head, level, stride in zip(self.heads, (first, x), (4, 8))]
        return torch.cat(made, 2)

    def _decoded(self, found: Tensor, stride: int) -> Tensor:
        n, _, h, w = found.shape
        ways, scores = found.view(n, -1, h * w).split((4 * self.bins, self.classes), 1)
        shares = ways.view(n, 4, self.bins, h * w).softmax(2)
        ends = (shares * torch.arange(self.bins, dtype=torch.float32)[:, None]).sum(2)
        y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
        places = torch.stack((x.reshape(-1), y.reshape(-1)))
        corners = torch.cat((places - ends[:, :2], places + ends[:, 2:]), 1) * stride
        return torch.cat((corners, scores.sigmoid()), 1)


class Tagger(nn.Module):
    """A class for each token, by a recurrent layer both ways."""

    def __init__(self, layer: type[nn.RNNBase], width: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.layer = layer(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.classes = nn.Linear(2 * width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classes(self.layer(self.words(tokens))[0]).log_softmax(-1)


class BeamSearch(nn.Module):
    """The best continuations of sequences by scores of pairs of tokens; scripted, so that its loop is one of the graph."""

    def __init__(self, words: int = 20, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.scores = nn.Embedding(words, width), nn.Linear(width, words)
        self.words = words

    def forward(self, tokens: Tensor, totals: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        batch, beams = totals.shape[0], totals.shape[1]
        for _ in range(steps):
            further = self.scores(self.embedding(tokens[:, :, -1])).log_softmax(-1) + totals.unsqueeze(-1)
            totals, best = further.reshape(batch, beams * self.words).topk(4, 1)
            before = torch.gather(tokens, 1, (best // self.words).unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
            tokens = torch.cat((before, (best % self.words).unsqueeze(-1)), 2)
        return tokens, totals
