"""Networks in plain torch for the layers that convolutional classifiers leave out.

Modules only, each with the sizes as arguments; `plain.py` says which sizes are published and which
are for tests. It must not know how a model is exported, read or served.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class MixerBlock(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self, patches: int, width: int, patch_width: int, channel_width: int) -> None:
        super().__init__()
        self.patch_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches = nn.Sequential(
            nn.Linear(patches, patch_width), nn.GELU(), nn.Linear(patch_width, patches)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, channel_width), nn.GELU(), nn.Linear(channel_width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.patch_norm(x).mT).mT
        return x + self.channels(self.channel_norm(x))


class Mixer(nn.Module):
    """MLP-Mixer (Tolstikhin 2021). The linear layer over patches fixes the image's size."""

    def __init__(self, image: int, patch: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        patches = (image // patch) ** 2
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(
            *(MixerBlock(patches, width, width // 2, width * 4) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.cut(image).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(dim=1))


def _shared(*widths: int) -> nn.Sequential:
    """The same layers for every point."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class PointNet(nn.Module):
    """PointNet (Qi 2017): a cloud of any number of points; a class of it, and of each point."""

    def __init__(self, width: int, classes: int, parts: int) -> None:
        super().__init__()
        self.align = _shared(3, width, width * 16)
        self.rotation = nn.Linear(width * 16, 9)
        self.near = _shared(3, width, width)
        self.far = _shared(width, width * 2, width * 16)
        self.head = nn.Linear(width * 16, classes)
        self.parts = nn.Sequential(_shared(width * 17, width * 4), nn.Conv1d(width * 4, parts, 1))

    def forward(self, points: Tensor) -> dict[str, Tensor]:
        turned = self.rotation(self.align(points).amax(dim=2)).view(-1, 3, 3) + torch.eye(3)
        near = self.near(torch.bmm(turned, points))
        whole, _ = self.far(near).max(dim=2)
        spread = whole.unsqueeze(-1).repeat(1, 1, points.shape[2])
        parts = self.parts(torch.cat([near, spread], dim=1))
        return {"logits": self.head(whole), "parts": parts.argmax(dim=1)}


class Sequence2Sequence(nn.Module):
    """nn.Transformer's encoder and decoder, with a padding mask and a causal one."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        encoder = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, depth, enable_nested_tensor=False)
        decoder = nn.TransformerDecoderLayer(
            width, heads, 2 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(decoder, depth, nn.LayerNorm(width))

    def forward(self, source: Tensor, padding: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(source, src_key_padding_mask=padding)
        length = target.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        # Said, because torch would look into the mask to find out, and tracing has no values.
        return self.decoder(
            target,
            memory,
            tgt_mask=later,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )


class Encoder(nn.Module):
    """nn.TransformerEncoder as the tutorials have it: whole sequences, no mask."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(tokens).mean(dim=1)


class CrossAttention(nn.Module):
    """nn.MultiheadAttention between two sequences, and where each one looked."""

    def __init__(self, width: int, other: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(
            width, heads, kdim=other, vdim=other, batch_first=True, add_bias_kv=True
        )

    def forward(self, query: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attention(query, context, context, average_attn_weights=False)
        return mixed, weights


class SpatialTransformer(nn.Module):
    """Turns and crops its input by what it sees (Jaderberg 2015): affine_grid and grid_sample."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(3, width, 7, 2), nn.MaxPool2d(2), nn.ReLU(True), nn.AdaptiveMaxPool2d(3)
        )
        self.affine = nn.Linear(width * 9, 6)
        self.start = nn.Buffer(torch.tensor([1.0, 0, 0, 0, 1, 0]), persistent=False)
        self.head = nn.Sequential(nn.Conv2d(3, width, 5), nn.ELU(), nn.AdaptiveAvgPool2d(2))
        self.classes = nn.Linear(width * 4, classes)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        theta = self.affine(self.look(image).flatten(1)) * 0.1 + self.start
        grid = functional.affine_grid(theta.view(-1, 2, 3), list(image.shape), align_corners=False)
        turned = functional.grid_sample(image, grid, align_corners=False, padding_mode="border")
        return {"logits": self.classes(self.head(turned).flatten(1)), "turned": turned}


class SuperResolution(nn.Module):
    """Sub-pixel convolution (Shi 2016) over a bicubic enlargement."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2, padding_mode="reflect"), nn.PReLU(width),
            nn.Conv2d(width, width // 2, 3, padding=1, padding_mode="replicate"), nn.LeakyReLU(0.2),
            nn.Conv2d(width // 2, 3 * factor**2, 3, padding=1), nn.PixelShuffle(factor),
        )  # fmt: skip
        self.factor = factor

    def forward(self, image: Tensor) -> Tensor:
        # By size: `scale_factor` gives sizes by floating point, and torch.export can't prove that
        # they are those of the shuffled pixels.
        size = (image.shape[2] * self.factor, image.shape[3] * self.factor)
        enlarged = functional.interpolate(image, size, mode="bicubic", align_corners=False)
        sharper = (enlarged + self.layers(image)).clamp(-1.0, 1.0)
        return ((sharper + 1.0) * 127.5).round().to(torch.uint8)


class VideoClassifier(nn.Module):
    """Convolution over time and space (Tran 2015): any number of frames of any size."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(3, width, 3, padding=1), nn.InstanceNorm3d(width, affine=True), nn.ReLU(),
            nn.MaxPool3d((1, 2, 2)), nn.Conv3d(width, 2 * width, 3, (2, 1, 1), padding=1),
            nn.BatchNorm3d(2 * width), nn.Hardtanh(), nn.AvgPool3d((1, 2, 2)),
            nn.AdaptiveAvgPool3d((1, 2, 2)),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, classes)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.layers(frames).flatten(1))


class PatchDenoiser(nn.Module):
    """Works on overlapping patches and adds them up again: unfold and fold."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.layers = nn.Sequential(
            nn.Linear(3 * patch**2, width), nn.Softplus(), nn.Linear(width, 3 * patch**2)
        )

    def forward(self, image: Tensor) -> Tensor:
        size, stride = (image.shape[2], image.shape[3]), self.patch // 2
        columns = functional.unfold(image, self.patch, stride=stride)
        cleaned = self.layers(columns.mT.contiguous()).mT
        total = functional.fold(cleaned, size, self.patch, stride=stride)
        counts = functional.fold(torch.ones_like(columns), size, self.patch, stride=stride)
        return total / counts


class FeaturePyramid(nn.Module):
    """Segmentation from maps of several scales, joined bilinearly (Kirillov 2019)."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        inputs = [3, *[width] * (levels - 1)]
        self.down = nn.ModuleList(nn.Conv2d(count, width, 3, 2, 1) for count in inputs)
        self.side = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(levels))
        self.norm = nn.LocalResponseNorm(3)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = [image]
        for down in self.down:
            maps.append(functional.relu6(down(maps[-1])))
        x = self.side[-1](maps.pop())
        for side in list(self.side)[-2::-1]:
            y = side(maps.pop())
            x = y + functional.interpolate(x, size=y.shape[2:], mode="bilinear")
        logits = functional.interpolate(
            self.head(self.norm(x)), size=image.shape[2:], mode="bilinear", align_corners=True
        )
        return {"logits": logits, "foreground": logits.argmax(1) != 0}


class RelationHeads(nn.Module):
    """Integer and boolean results of pairs of objects: einsum, top-k, sort, argmax, comparisons."""

    def __init__(self, width: int, relations: int, top: int) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.randn(relations, width, width) * width**-0.5)
        self.names = nn.Embedding(relations, width)
        self.top = top

    def forward(self, objects: Tensor, is_valid: Tensor) -> dict[str, Tensor]:
        scores = torch.einsum("bie,ref,bjf->brij", objects, self.form, objects)
        both = is_valid[:, None, :, None] & is_valid[:, None, None, :]
        scores = scores.masked_fill(~both, -1e9)
        best, relation = scores.max(dim=1)
        values, where = best.flatten(1).topk(self.top, dim=1)
        count = objects.shape[1]
        order = objects.square().sum(-1).argsort(dim=1, descending=True)
        return {
            "values": values,
            "subjects": where // count,
            "objects": where % count,
            "relation": relation.to(torch.int16),
            "named": self.names(relation.flatten(1).gather(1, where)),
            "order": order.to(torch.int32),
            "is_certain": values > 0.5,
            "count": is_valid.sum(dim=1),
            "any_certain": torch.any(values > 2.0, dim=1),
        }
