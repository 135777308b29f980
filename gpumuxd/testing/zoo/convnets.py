"""Convolutional networks in plain torch, as their papers draw them: classifiers and a detector.

Modules only, each with the sizes as arguments; `plain.py` says which sizes are published and which
are for tests. It must not know how a model is exported, read or served.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and, unless there is none, an activation in place."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: type[nn.Module] | None = nn.SiLU,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        if activation is not None:
            layers.append(activation(inplace=True))
        super().__init__(*layers)


class SqueezeExcite(nn.Module):
    """Weighs channels by what the whole picture holds."""

    def __init__(self, width: int, squeezed: int, gate: type[nn.Module]) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, width, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.adaptive_avg_pool2d(x, 1)
        weights = self.expand(functional.relu(self.reduce(pooled), inplace=True))
        return x * self.gate(weights)


@dataclass(frozen=True, slots=True)
class Stage:
    """`repeats` inverted residuals; the first has the stride."""

    expanded: float
    """Inner width, as a multiple of the outer one."""
    outputs: int
    kernel: int
    stride: int
    repeats: int = 1
    has_gate: bool = True
    activation: type[nn.Module] = nn.SiLU


class InvertedResidual(nn.Module):
    """Widen, filter each channel, weigh channels, narrow; add where the shapes agree."""

    def __init__(self, inputs: int, stage: Stage, stride: int, gate: type[nn.Module]) -> None:
        super().__init__()
        inner, act = round(inputs * stage.expanded), stage.activation
        layers: list[nn.Module] = []
        if inner != inputs:
            layers.append(ConvNorm(inputs, inner, activation=act))
        layers.append(ConvNorm(inner, inner, stage.kernel, stride, inner, act))
        if stage.has_gate:
            layers.append(SqueezeExcite(inner, max(inputs // 4, 4), gate))
        layers.append(ConvNorm(inner, stage.outputs, activation=None))
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == stage.outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        if self.is_residual:
            y += x
        return y


class MobileClassifier(nn.Module):
    """MobileNetV3 (Howard 2019) or EfficientNet (Tan 2019), by its stages."""

    def __init__(
        self,
        stages: Sequence[Stage],
        stem: int,
        last: int,
        hidden: int | None,
        classes: int,
        gate: type[nn.Module],
        activation: type[nn.Module],
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(3, stem, 3, 2, activation=activation)]
        width = stem
        for stage in stages:
            for i in range(stage.repeats):
                layers.append(InvertedResidual(width, stage, stage.stride if i == 0 else 1, gate))
                width = stage.outputs
        layers.append(ConvNorm(width, last, activation=activation))
        self.features = nn.Sequential(*layers)
        head: list[nn.Module] = []
        if hidden is not None:
            head += [nn.Linear(last, hidden), activation(inplace=True)]
        self.head = nn.Sequential(
            *head, nn.Dropout(0.2, inplace=True), nn.Linear(hidden or last, classes)
        )

    def forward(self, image: Tensor) -> Tensor:
        features = functional.adaptive_avg_pool2d(self.features(image), 1)
        return self.head(torch.flatten(features, 1))


class CrossStage(nn.Module):
    """Half of the channels pass, half go through bottlenecks whose every step is kept (C2f)."""

    def __init__(self, inputs: int, outputs: int, repeats: int, is_residual: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = ConvNorm(inputs, 2 * half)
        self.steps = nn.ModuleList(
            nn.Sequential(ConvNorm(half, half, 3), ConvNorm(half, half, 3)) for _ in range(repeats)
        )
        self.leave = ConvNorm((2 + repeats) * half, outputs)
        self.is_residual = is_residual

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for step in self.steps:
            made = step(parts[-1])
            parts.append(parts[-1] + made if self.is_residual else made)
        return self.leave(torch.cat(parts, 1))


class PyramidPooling(nn.Module):
    """Pools the same map again and again and joins the results (SPPF)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = ConvNorm(width, width // 2)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.leave = ConvNorm(width * 2, width)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.enter(x)]
        for _ in range(3):
            maps.append(self.pool(maps[-1]))
        return self.leave(torch.cat(maps, 1))


class Detector(nn.Module):
    """A YOLO-like detector (v8's layers, v10's output): the best boxes, no suppression needed.

    `levels` maps are looked at, the smallest of a side of 1 / 2 ** len(widths). Sides of an image
    are multiples of that. Anchors are made from the size of each map.
    """

    BINS = 16

    def __init__(
        self, widths: Sequence[int], levels: int, repeats: int, classes: int, detections: int
    ) -> None:
        super().__init__()
        self.stem = ConvNorm(3, widths[0], 3, 2)
        self.down = nn.ModuleList(
            nn.Sequential(ConvNorm(a, b, 3, 2), CrossStage(b, b, repeats, True))
            for a, b in pairwise(widths)
        )
        self.pool = PyramidPooling(widths[-1])
        seen = list(widths[-levels:])
        pairs = list(pairwise(seen))
        self.up = nn.ModuleList(CrossStage(a + b, a, repeats, False) for a, b in pairs)
        self.shrink = nn.ModuleList(ConvNorm(a, a, 3, 2) for a, _ in pairs)
        self.join = nn.ModuleList(CrossStage(a + b, b, repeats, False) for a, b in pairs)
        self.boxes = nn.ModuleList(self._head(width, 4 * self.BINS) for width in seen)
        self.classes = nn.ModuleList(self._head(width, classes) for width in seen)
        self.strides = [2 ** (len(widths) - levels + 1 + i) for i in range(levels)]
        self.class_count, self.detections = classes, detections
        self.bins = nn.Buffer(torch.arange(self.BINS, dtype=torch.float32), persistent=False)

    @staticmethod
    def _head(width: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            ConvNorm(width, width, 3), ConvNorm(width, width, 3), nn.Conv2d(width, outputs, 1)
        )

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = [self.stem(image)]
        for stage in self.down:
            maps.append(stage(maps[-1]))
        maps = maps[-len(self.strides) :]
        maps[-1] = self.pool(maps[-1])
        for i in reversed(range(len(self.up))):
            larger = functional.interpolate(maps[i + 1], scale_factor=2.0)
            maps[i] = self.up[i](torch.cat([larger, maps[i]], 1))
        for i, (shrink, join) in enumerate(zip(self.shrink, self.join, strict=True)):
            maps[i + 1] = join(torch.cat([shrink(maps[i]), maps[i + 1]], 1))
        return self._best(maps)

    def _best(self, maps: Sequence[Tensor]) -> dict[str, Tensor]:
        boxes, scores = [], []
        for x, stride, box_head, class_head in zip(
            maps, self.strides, self.boxes, self.classes, strict=True
        ):
            boxes.append(self._boxes(box_head(x), stride))
            scores.append(class_head(x).flatten(2).transpose(1, 2).sigmoid())
        all_boxes, all_scores = torch.cat(boxes, 1), torch.cat(scores, 1)
        best, where = all_scores.flatten(1).topk(self.detections, dim=1)
        anchor = torch.div(where, self.class_count, rounding_mode="floor")
        return {
            "boxes": all_boxes.gather(1, anchor.unsqueeze(-1).expand(-1, -1, 4)),
            "scores": best,
            "labels": (where % self.class_count).to(torch.int32),
        }

    def _boxes(self, distances: Tensor, stride: int) -> Tensor:
        """Corners in pixels: the expected distance from each cell's middle to the four sides."""
        batch, _, height, width = distances.shape
        bins = distances.view(batch, 4, self.BINS, height * width).softmax(2)
        left, top, right, bottom = torch.einsum("bdna,n->bda", bins, self.bins).unbind(1)
        y, x = torch.meshgrid(
            torch.arange(height, dtype=torch.float32) + 0.5,
            torch.arange(width, dtype=torch.float32) + 0.5,
            indexing="ij",
        )
        x, y = x.reshape(-1), y.reshape(-1)
        return torch.stack([x - left, y - top, x + right, y + bottom], -1) * stride
