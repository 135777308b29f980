"""Models in plain torch.nn: which there are, their published sizes, and small ones for tests.

The networks themselves are in `convnets.py`, `generative.py` and `layers.py`. It must not know how
a model is exported, read or served.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from gpumuxd.programs.exporter import ExportRequest
from gpumuxd.testing.zoo.catalogue import Architecture, Scale
from gpumuxd.testing.zoo.convnets import Detector, MobileClassifier, Stage
from gpumuxd.testing.zoo.generative import Autoencoder, DiffusionUNet, UNet
from gpumuxd.testing.zoo.layers import (
    CrossAttention,
    Encoder,
    FeaturePyramid,
    Mixer,
    PatchDenoiser,
    PointNet,
    RelationHeads,
    Sequence2Sequence,
    SpatialTransformer,
    SuperResolution,
    VideoClassifier,
)
from gpumuxd.testing.zoo.vision import NO_SIDE, image_request, sides

SEED = 30

_HS, _RE = nn.Hardswish, nn.ReLU

_MOBILENET_V3 = (  # Large, Howard 2019 table 1
    Stage(1, 16, 3, 1, 1, False, _RE), Stage(4, 24, 3, 2, 1, False, _RE),
    Stage(3, 24, 3, 1, 1, False, _RE), Stage(3, 40, 5, 2, 3, True, _RE),
    Stage(6, 80, 3, 2, 1, False, _HS), Stage(2.5, 80, 3, 1, 1, False, _HS),
    Stage(2.3, 80, 3, 1, 2, False, _HS), Stage(6, 112, 3, 1, 2, True, _HS),
    Stage(6, 160, 5, 2, 3, True, _HS),
)  # fmt: skip

_EFFICIENTNET_B0 = (  # Tan 2019 table 1
    Stage(1, 16, 3, 1, 1), Stage(6, 24, 3, 2, 2), Stage(6, 40, 5, 2, 2), Stage(6, 80, 3, 2, 3),
    Stage(6, 112, 5, 1, 3), Stage(6, 192, 5, 2, 4), Stage(6, 320, 3, 1, 1),
)  # fmt: skip


def _is_small(scale: Scale) -> bool:
    torch.manual_seed(SEED)
    return scale is Scale.SMALL


def _mobilenet_v3(scale: Scale) -> ExportRequest:
    if _is_small(scale):
        stages = (Stage(1, 8, 3, 1, 1, False, _RE), Stage(4, 8, 5, 2, 2, True, _HS))
        model = MobileClassifier(stages, 8, 16, 16, 5, nn.Hardsigmoid, _HS)
    else:
        model = MobileClassifier(_MOBILENET_V3, 16, 960, 1280, 1000, nn.Hardsigmoid, _HS)
    side = 224 if scale is Scale.FULL else 48
    return image_request(model, side, smallest=33, vary=sides(scale))


def _efficientnet(scale: Scale) -> ExportRequest:
    if _is_small(scale):
        stages = (Stage(1, 8, 3, 1), Stage(6, 8, 5, 2, 2))
        model = MobileClassifier(stages, 8, 16, None, 5, nn.Sigmoid, nn.SiLU)
    else:
        model = MobileClassifier(_EFFICIENTNET_B0, 32, 1280, None, 1000, nn.Sigmoid, nn.SiLU)
    side = 224 if scale is Scale.FULL else 48
    return image_request(model, side, smallest=33, vary=sides(scale))


def _converted(request: ExportRequest, dtype: torch.dtype) -> ExportRequest:
    examples = request.example_inputs
    assert isinstance(examples, Mapping), "our own requests name their inputs"
    return replace(
        request,
        module=request.module.to(dtype),
        example_inputs={name: value.to(dtype) for name, value in examples.items()},
    )


def _yolo(scale: Scale) -> ExportRequest:
    if _is_small(scale):
        model = Detector((4, 8, 8), 2, 1, 3, 5)
    else:  # about v8n
        model = Detector((16, 32, 64, 128, 256), 3, 1, 80, 300)
    side = 320 if scale is Scale.FULL else 64
    return image_request(
        model, side, multiple=32, smallest=64, vary=sides(scale, NO_SIDE), batch_max=8
    )


def _unet(scale: Scale) -> ExportRequest:
    if _is_small(scale):
        return image_request(UNet((4, 8, 8), 3), 16, multiple=4, smallest=8, batch_max=8)
    model = UNet((64, 128, 256, 512, 1024), 21)
    return image_request(model, 96, multiple=16, smallest=32, batch_max=8)


def _autoencoder(scale: Scale) -> ExportRequest:
    if _is_small(scale):
        return image_request(Autoencoder((8, 16), 4, 4), 16, multiple=2, smallest=8, batch_max=8)
    model = Autoencoder((128, 256, 512, 512), 4, 32)
    return image_request(model, 64, multiple=8, smallest=16, batch_max=8)


def _diffusion(scale: Scale) -> ExportRequest:
    is_small = _is_small(scale)
    widths, groups, heads = ((8, 16), 4, 2) if is_small else ((320, 640, 1280), 32, 8)
    size = 8 if is_small else 16
    return ExportRequest(
        DiffusionUNet(widths, groups, heads),
        {"latent": torch.randn(2, 4, size, size + 8), "time": torch.rand(2) * 1000},
        {"latent": {0: "batch", **sides(scale)}, "time": {0: "batch"}},
        dict.fromkeys(sides(scale).values(), (8, 128)),
        batch_max=8,
        output_names=("noise",),
        multiples=dict.fromkeys(sides(scale).values(), 4),
    )


def _diffusion_bf16(scale: Scale) -> ExportRequest:
    return _converted(_diffusion(scale), torch.bfloat16)


def _mixer(scale: Scale) -> ExportRequest:
    if _is_small(scale):
        return image_request(Mixer(32, 8, 16, 2, 5), 32)
    return image_request(Mixer(224, 16, 512, 8, 1000), 224)  # S/16


def _mixer_fp16(scale: Scale) -> ExportRequest:
    return _converted(_mixer(scale), torch.float16)


def _pointnet(scale: Scale) -> ExportRequest:
    model = PointNet(8, 5, 3) if _is_small(scale) else PointNet(64, 40, 50)
    return ExportRequest(
        model,
        {"points": torch.randn(2, 3, 40 if scale is Scale.SMALL else 1024)},
        {"points": {0: "batch", 2: "points"}},
        {"points": (1, 8192)},
    )


def _transformer(scale: Scale) -> ExportRequest:
    width, heads, depth = (16, 2, 1) if _is_small(scale) else (512, 8, 6)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = True
    source = {0: "batch", 1: "source_length"}
    return ExportRequest(
        Sequence2Sequence(width, heads, depth),
        {
            "source": torch.randn(2, 9, width),
            "padding": padding,
            "target": torch.randn(2, 5, width),
        },
        {"source": source, "padding": source, "target": {0: "batch", 1: "target_length"}},
        {"source_length": (1, 512), "target_length": (1, 512)},
    )


def _encoder(scale: Scale) -> ExportRequest:
    width, heads, depth = (16, 2, 2) if _is_small(scale) else (512, 8, 6)
    return ExportRequest(
        Encoder(width, heads, depth),
        {"tokens": torch.randn(2, 9, width)},
        {"tokens": {0: "batch", 1: "length"}},
        {"length": (1, 512)},
    )


def _attention(scale: Scale) -> ExportRequest:
    width, other, heads = (16, 12, 4) if _is_small(scale) else (768, 512, 12)
    return ExportRequest(
        CrossAttention(width, other, heads),
        {"query": torch.randn(2, 5, width), "context": torch.randn(2, 7, other)},
        {"query": {0: "batch", 1: "queries"}, "context": {0: "batch", 1: "length"}},
        {"queries": (1, 256), "length": (1, 256)},
        output_names=("mixed", "weights"),
    )


def _spatial_transformer(scale: Scale) -> ExportRequest:
    model = SpatialTransformer(8, 5) if _is_small(scale) else SpatialTransformer(64, 43)
    # torch.export fixes the sizes that affine_grid is given.
    return image_request(model, (40, 48))


def _super_resolution(scale: Scale) -> ExportRequest:
    model = SuperResolution(8, 2) if _is_small(scale) else SuperResolution(64, 3)
    return image_request(model, 24 if scale is Scale.SMALL else 64, smallest=8, batch_max=8)


def _video(scale: Scale) -> ExportRequest:
    model = VideoClassifier(4, 5) if _is_small(scale) else VideoClassifier(64, 400)
    return ExportRequest(
        model,
        {"frames": torch.randn(2, 3, 6, 16, 24)},
        {"frames": {0: "batch", 2: "time", 3: "height", 4: "width"}},
        {"time": (4, 64), "height": (8, 256), "width": (8, 256)},
        batch_max=4,
    )


def _patches(scale: Scale) -> ExportRequest:
    model = PatchDenoiser(4, 16) if _is_small(scale) else PatchDenoiser(8, 512)
    return image_request(model, 16 if scale is Scale.SMALL else 64, multiple=4, smallest=16)


def _feature_pyramid(scale: Scale) -> ExportRequest:
    model = FeaturePyramid(8, 2, 4) if _is_small(scale) else FeaturePyramid(128, 4, 21)
    side = 40 if scale is Scale.SMALL else 128
    return image_request(model, side, smallest=32, vary=sides(scale), batch_max=8)


def _relations(scale: Scale) -> ExportRequest:
    width, relations = (8, 3) if _is_small(scale) else (256, 50)
    objects = {0: "batch", 1: "objects"}
    return ExportRequest(
        RelationHeads(width, relations, 4),
        {"objects": torch.randn(2, 6, width), "is_valid": torch.ones(2, 6, dtype=torch.bool)},
        {"objects": objects, "is_valid": objects},
        {"objects": (2, 64)},
    )


def _sizes(names: str, *rows: tuple[int, ...]) -> list[dict[str, int]]:
    """Rows of a table: values of `names`, batch first."""
    keys = ["batch", *names.split()]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _image_sizes(smallest: int, *rows: tuple[int, int, int]) -> list[dict[str, int]]:
    return _sizes("height width", (1, smallest, smallest), *rows)


def _plain(
    name: str,
    family: str,
    make: Callable[[Scale], ExportRequest],
    sizes: Sequence[Mapping[str, int]],
) -> Architecture:
    return Architecture(name, family, make, sizes)


_ODD = _image_sizes(33, (2, 45, 64), (3, 64, 37))
_BY_32 = _image_sizes(64, (2, 96, 64), (3, 64, 128))
_BY_16 = _image_sizes(32, (2, 48, 32), (3, 32, 80))
_LATENT = _image_sizes(8, (2, 12, 8), (3, 16, 20))

ARCHITECTURES: Sequence[Architecture] = (
    _plain("mobilenet-v3", "vision", _mobilenet_v3, _ODD),
    _plain("efficientnet", "vision", _efficientnet, _ODD),
    _plain("mixer", "vision", _mixer, _sizes("", (1,), (2,), (5,))),
    _plain("mixer-fp16", "vision", _mixer_fp16, _sizes("", (1,), (2,), (5,))),
    _plain("yolo", "detection", _yolo, _BY_32),
    _plain("spatial-transformer", "vision", _spatial_transformer, _sizes("", (1,), (2,), (5,))),
    _plain("unet", "segmentation", _unet, _BY_16),
    _plain("feature-pyramid", "segmentation", _feature_pyramid, _ODD),
    _plain("super-resolution", "image to image", _super_resolution, _image_sizes(8, (2, 9, 16))),
    _plain("patch-denoiser", "image to image", _patches, _BY_16),
    _plain("autoencoder", "image to image", _autoencoder, _BY_16),
    _plain("diffusion-unet", "image to image", _diffusion, _LATENT),
    _plain("diffusion-unet-bf16", "image to image", _diffusion_bf16, _LATENT),
    _plain("video", "video", _video, _sizes("time height width", (1, 4, 8, 8), (2, 7, 9, 14))),
    _plain("pointnet", "points", _pointnet, _sizes("points", (1, 1), (2, 17), (3, 100))),
    _plain("transformer", "layers", _transformer,
        _sizes("source_length target_length", (1, 1, 1), (2, 8, 3), (3, 5, 9))),
    _plain("transformer-encoder", "layers", _encoder, _sizes("length", (1, 1), (2, 8), (3, 17))),
    _plain("multihead-attention", "layers", _attention,
        _sizes("queries length", (1, 1, 1), (2, 3, 8), (3, 6, 2))),
    _plain("relations", "heads", _relations, _sizes("objects", (1, 2), (2, 5), (3, 8))),
)  # fmt: skip
