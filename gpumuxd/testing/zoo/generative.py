"""Image to image in plain torch: U-Net, an autoencoder, and the U-Net of a diffusion model.

Modules only, each with the sizes as arguments; `plain.py` says which sizes are published and which
are for tests. It must not know how a model is exported, read or served.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class DoubleConv(nn.Sequential):
    """Two 3 x 3 convolutions, each with batch norm and an activation in place."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Segmentation (Ronneberger 2015): a class for each pixel, and how sure it is.

    Sides are multiples of 2 to the number of halvings.
    """

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.first = DoubleConv(3, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in pairs)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.up = nn.ModuleList(DoubleConv(2 * a, a) for a, _ in reversed(pairs))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = [self.first(image)]
        for down in self.down:
            maps.append(down(functional.max_pool2d(maps[-1], 2)))
        x = maps.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([maps.pop(), grow(x)], 1))
        confidence, label = self.head(x).softmax(1).max(1)
        return {"labels": label.to(torch.uint8), "confidence": confidence}


class Residual(nn.Module):
    """Group norm, SiLU and convolution, twice; with an embedding of the time where there is one."""

    def __init__(self, inputs: int, outputs: int, groups: int, embedded: int | None) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(groups, inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.shift = nn.Linear(embedded, outputs) if embedded is not None else None
        self.second_norm = nn.GroupNorm(groups, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        y = self.first(functional.silu(self.first_norm(x)))
        if self.shift is not None and embedding is not None:
            y = y + self.shift(functional.silu(embedding))[:, :, None, None]
        y = self.second(functional.silu(self.second_norm(y)))
        return self.shortcut(x) + y


class ImageAttention(nn.Module):
    """Every pixel of a small map attends to every other."""

    def __init__(self, width: int, groups: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, columns = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(tokens).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).reshape(batch, width, height, columns)


class Autoencoder(nn.Module):
    """A variational one as diffusion models have it, without its noise: to the mean and back."""

    def __init__(self, widths: Sequence[int], latent: int, groups: int) -> None:
        super().__init__()
        encoder: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1)]
        for a, b in pairwise(widths):
            encoder += [Residual(a, b, groups, None), nn.Conv2d(b, b, 3, 2, 1)]
        last = widths[-1]
        encoder += [ImageAttention(last, groups, 1), nn.GroupNorm(groups, last), nn.SiLU()]
        self.encoder = nn.Sequential(*encoder, nn.Conv2d(last, 2 * latent, 3, padding=1))
        decoder: list[nn.Module] = [nn.Conv2d(latent, last, 3, padding=1)]
        decoder.append(ImageAttention(last, groups, 1))
        for b, a in pairwise(reversed(widths)):
            decoder += [nn.Upsample(scale_factor=2.0), Residual(b, a, groups, None)]
        decoder += [nn.GroupNorm(groups, widths[0]), nn.SiLU()]
        self.decoder = nn.Sequential(*decoder, nn.Conv2d(widths[0], 3, 3, padding=1), nn.Tanh())

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.encoder(image).chunk(2, dim=1)
        return {
            "image": self.decoder(mean),
            "mean": mean,
            "deviation": torch.exp(0.5 * log_variance.clamp(-30.0, 20.0)),
        }


class DiffusionUNet(nn.Module):
    """One step of a diffusion model: the noise in an image, at a time per image."""

    def __init__(self, widths: Sequence[int], groups: int, heads: int) -> None:
        super().__init__()
        embedded = 4 * widths[0]
        self.embed = nn.Sequential(
            nn.Linear(widths[0], embedded), nn.SiLU(), nn.Linear(embedded, embedded)
        )
        self.frequencies = nn.Buffer(
            torch.exp(-math.log(10_000) * torch.arange(widths[0] // 2) / (widths[0] // 2))
        )
        pairs = list(pairwise(widths))
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down = nn.ModuleList(Residual(a, b, groups, embedded) for a, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for _, b in pairs)
        last = widths[-1]
        self.middle = Residual(last, last, groups, embedded)
        self.attention = ImageAttention(last, groups, heads)
        self.up = nn.ModuleList(Residual(2 * b, a, groups, embedded) for a, b in reversed(pairs))
        self.norm = nn.GroupNorm(groups, widths[0])
        self.head = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, latent: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * self.frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        embedding = self.embed(waves.to(latent.dtype))
        x = self.first(latent)
        skips = []
        for down, shrink in zip(self.down, self.shrink, strict=True):
            x = down(x, embedding)
            skips.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, embedding))
        for up in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = up(torch.cat([x, skips.pop()], dim=1), embedding)
        return self.head(functional.silu(self.norm(x)))
