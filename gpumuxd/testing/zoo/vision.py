"""Vision models made from `transformers` configurations: what people fine-tune and then serve.

Full ones are the published configurations, with random weights. It must not know how a model is
exported, read or served.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpumuxd.programs.exporter import ExportRequest
from gpumuxd.testing.zoo.catalogue import Architecture, Scale

SEED = 20

SMALLEST = 64
"""The smallest side where images are halved five times: torch.export takes a map of one pixel for
another kind of model."""


BOTH_SIDES: Mapping[int, str] = {2: "height", 3: "width"}
ONE_SIDE: Mapping[int, str] = {2: "height"}
NO_SIDE: Mapping[int, str] = {}


def sides(scale: Scale, in_tests: Mapping[int, str] = ONE_SIDE) -> Mapping[int, str]:
    """Which sides vary: both at full size. In tests fewer, of models whose every other size
    torch.export has to prove from them, since that takes it several times as long."""
    return BOTH_SIDES if scale is Scale.FULL else in_tests


class Named(nn.Module):
    """A model of transformers that takes an image and gives some of its outputs by name."""

    def __init__(self, model: nn.Module, outputs: Mapping[str, str], **options: bool) -> None:
        super().__init__()
        self.model = model
        self.outputs = dict(outputs)
        self.options = options

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        result = self.model(pixel_values=image, **self.options)
        return {name: getattr(result, field) for name, field in self.outputs.items()}


def image_request(
    module: nn.Module,
    size: tuple[int, int] | int,
    *,
    multiple: int = 1,
    smallest: int | None = None,
    vary: Mapping[int, str] = BOTH_SIDES,
    batch_max: int = 32,
) -> ExportRequest:
    """A model of images. With `smallest` the sides in `vary` go from there up, in multiples.

    An example whose sides are equal would let torch take one for the other, so they differ.
    """
    if smallest is None:
        height, width = (size, size) if isinstance(size, int) else size
        dynamic, sizes, multiples = {0: "batch"}, {}, {}
    else:
        assert isinstance(size, int), "one size, the other side follows"
        height, width = size, size + 2 * multiple
        dynamic = {0: "batch", **vary}
        sizes = dict.fromkeys(vary.values(), (smallest, 1024 // multiple * multiple))
        multiples = dict.fromkeys(vary.values(), multiple)
    return ExportRequest(
        module,
        {"image": torch.randn(2, 3, height, width)},
        {"image": dynamic},
        sizes,
        batch_max=batch_max,
        multiples=multiples,
    )


def _labels(scale: Scale) -> dict[str, Any]:
    """How many classes a classifier has. As `**options`, since each configuration takes it and
    none declares it."""
    return {"num_labels": 5 if scale is Scale.SMALL else 1000}


def _side(scale: Scale) -> int:
    """The side of an image, for models that take one size."""
    return 32 if scale is Scale.SMALL else 224


def _resnet(scale: Scale) -> ExportRequest:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(SEED)
    config = ResNetConfig(**_labels(scale))  # ResNet-50
    if scale is Scale.SMALL:
        config = ResNetConfig(
            embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2], **_labels(scale)
        )
    model = Named(ResNetForImageClassification(config), {"logits": "logits"})
    return image_request(model, 64 if scale is Scale.SMALL else 224, smallest=SMALLEST)


def _convnext(scale: Scale) -> ExportRequest:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    torch.manual_seed(SEED)
    config = ConvNextConfig(**_labels(scale))  # ConvNeXt-T
    if scale is Scale.SMALL:
        config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, **_labels(scale))
    model = Named(ConvNextForImageClassification(config), {"logits": "logits"})
    side = 64 if scale is Scale.SMALL else 224
    return image_request(model, side, smallest=SMALLEST, vary=sides(scale))


def _vit(scale: Scale) -> ExportRequest:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(SEED)
    config = ViTConfig(**_labels(scale))  # ViT-B/16
    if scale is Scale.SMALL:
        config = ViTConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            image_size=32, patch_size=8, **_labels(scale),
        )  # fmt: skip
    model = ViTForImageClassification(config)
    return image_request(Named(model, {"logits": "logits"}), _side(scale))


def _dinov2(scale: Scale) -> ExportRequest:
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(SEED)
    config = Dinov2Config(  # DINOv2-S/14
        hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14
    )
    if scale is Scale.SMALL:
        config = Dinov2Config(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=70, patch_size=14
        )
    outputs = {"patches": "last_hidden_state", "pooled": "pooler_output"}
    # Positions are interpolated for images of any size, bicubic.
    return image_request(
        Named(Dinov2Model(config), outputs),
        56 if scale is Scale.SMALL else 224,
        multiple=14,
        smallest=28,
        vary=sides(scale),
    )


def _swin(scale: Scale) -> ExportRequest:
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(SEED)
    config = SwinConfig(**_labels(scale))  # Swin-T
    if scale is Scale.SMALL:
        config = SwinConfig(
            image_size=32, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[1, 2],
            window_size=4, **_labels(scale),
        )  # fmt: skip
    model = SwinForImageClassification(config)
    # Whether a stage's map is padded to whole windows is decided in Python, for each image size.
    return image_request(Named(model, {"logits": "logits"}), _side(scale))


def _segformer(scale: Scale) -> ExportRequest:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(SEED)
    config = SegformerConfig(**_labels(scale))  # B0
    if scale is Scale.SMALL:
        config = SegformerConfig(
            num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 1], hidden_sizes=[8, 16],
            patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
            decoder_hidden_size=16, **_labels(scale),
        )  # fmt: skip
    model = Named(SegformerForSemanticSegmentation(config), {"classes": "logits"})
    side = 64 if scale is Scale.SMALL else 256
    return image_request(
        model, side, multiple=32, smallest=64, vary=sides(scale, NO_SIDE), batch_max=8
    )


def _clip_vision(scale: Scale) -> ExportRequest:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(SEED)
    config = CLIPVisionConfig()  # ViT-B/32
    if scale is Scale.SMALL:
        config = CLIPVisionConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            image_size=32, patch_size=8, projection_dim=16,
        )  # fmt: skip
    model = CLIPVisionModelWithProjection(config)
    return image_request(
        Named(model, {"embedding": "image_embeds", "patches": "last_hidden_state"}),
        _side(scale),
    )


def _detr(scale: Scale) -> ExportRequest:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    torch.manual_seed(SEED)
    options: dict[str, Any] = {
        "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
    }  # fmt: skip
    backbone: dict[str, Any] = {"out_features": ["stage4"]}  # ResNet-50
    if scale is Scale.SMALL:
        backbone = {
            "embedding_size": 8, "hidden_sizes": [16], "depths": [1], "out_features": ["stage1"],
        }  # fmt: skip
        options |= {
            "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 7,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        }  # fmt: skip
    config = DetrConfig(backbone_config=ResNetConfig(**backbone), **options, **_labels(scale))
    model = Named(DetrForObjectDetection(config), {"classes": "logits", "boxes": "pred_boxes"})
    side = 64 if scale is Scale.SMALL else 256
    return image_request(model, side, smallest=64, vary=sides(scale, NO_SIDE), batch_max=8)


FIXED = ({"batch": 1}, {"batch": 2}, {"batch": 5})
"""Sizes of models whose images have one size."""


def _varied(smallest: int, *others: tuple[int, int, int]) -> list[dict[str, int]]:
    sizes = [(1, smallest, smallest), *others]
    return [{"batch": b, "height": h, "width": w} for b, h, w in sizes]


def _vision(
    name: str, make: Callable[[Scale], ExportRequest], sizes: Sequence[Mapping[str, int]]
) -> Architecture:
    return Architecture(name, "vision", make, sizes)


ARCHITECTURES: Sequence[Architecture] = (
    _vision("resnet", _resnet, _varied(64, (2, 75, 64), (3, 64, 101))),
    _vision("convnext", _convnext, _varied(64, (2, 75, 64), (3, 64, 101))),
    _vision("vit", _vit, FIXED),
    _vision("dinov2", _dinov2, _varied(28, (2, 56, 70), (3, 84, 42))),
    _vision("swin", _swin, FIXED),
    _vision("segformer", _segformer, _varied(64, (2, 96, 64), (3, 64, 128))),
    _vision("clip-vision", _clip_vision, FIXED),
    _vision("detr", _detr, _varied(64, (2, 75, 64), (3, 64, 101))),
)
