"""Pages of models as a node gives them: every field has a value of its own."""

from gpumuxd.domain import PriorityClass
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.node.api import (
    BoundOrigin,
    BoundView,
    BucketView,
    GroupView,
    LoadedView,
    ModelDetail,
    ModelState,
    PolicyView,
    Verdict,
    VersionView,
)
from gpumuxd.units import MIB, NS_PER_MS, NS_PER_US

SEGMENTS_SPEC = ModelSpec(
    inputs=(TensorSpec("image", "FP32", (("batch",), 3, ("height",), ("width",))),),
    outputs=(
        TensorSpec("mask", "FP32", (("batch",), ("height", 2, "//"), ("width", 2, "//"))),
        TensorSpec("score", "FP16", (("batch",),)),
    ),
    symbols=(Symbol("batch", 1, 64), Symbol("height", 32, 512, 32), Symbol("width", 32, 512, 32)),
    batch_symbol="batch",
)

SEGMENTS = ModelDetail(
    "segments",
    (
        VersionView(
            "2",
            ModelState.READY,
            "",
            PolicyView(
                ("camera", "search"), PriorityClass.REALTIME, 30 * NS_PER_MS, "cpu:0", 16, "all"
            ),
            LoadedView(
                platform="pytorch_pt2",
                device="cpu:0",
                artifact_hash="9f86d081884c7d659a2feaa0c55ad015",
                spec=SEGMENTS_SPEC,
                batch_max=16,
                parameter_count=25_557_032,
                weights_bytes=102 * MIB,
                frame_bytes=12 * MIB + MIB // 2,
                group_count=51,
                buckets=(
                    BucketView(
                        (1, 256, 256), 1_200 * NS_PER_US, GroupView(12, 310 * NS_PER_US, 96, 99)
                    ),
                    BucketView(
                        (16, 256, 256),
                        91 * NS_PER_MS,
                        GroupView(12, 11_200 * NS_PER_US, 96, 99),
                        beyond_count=1,
                    ),
                    BucketView(
                        (32, 256, 256),
                        182 * NS_PER_MS,
                        GroupView(13, 22 * NS_PER_MS, 99, 100),
                        beyond_count=16,
                        has_more_beyond=True,
                        is_allowed=False,
                    ),
                ),
                bound=BoundView(8 * NS_PER_MS, BoundOrigin.LAXITY, "voice"),
                verdict=Verdict(
                    False,
                    "Not at batch 16 and more: its longest group (nodes 96 .. 98) takes 11.20 ms, "
                    "3.20 ms beyond the bound of 8.00 ms; a request of that size can delay urgent "
                    "work by 11.20 ms.",
                    "Set batch_max = 1 in model.toml, or raise slo_ms of voice.",
                ),
                notes=(
                    "height was measured at 256 of 32 .. 512; how long other sizes take is "
                    "learnt from requests.",
                ),
            ),
        ),
        VersionView(
            "1",
            ModelState.UNAVAILABLE,
            "replaced by version 2",
            PolicyView(
                ("camera", "search"), PriorityClass.REALTIME, 30 * NS_PER_MS, "cpu:0", 16, "all"
            ),
        ),
    ),
)
"""Two versions, one loaded and not preemptible."""

FIXED = ModelDetail(
    "fixed",
    (
        VersionView(
            "3",
            ModelState.READY,
            "",
            PolicyView(None, PriorityClass.STANDARD, None, None, None),
            LoadedView(
                platform="onnxruntime_onnx",
                device="cpu:1",
                artifact_hash="0a",
                spec=ModelSpec(
                    inputs=(TensorSpec("x", "INT8", (1, 4)),),
                    outputs=(TensorSpec("y", "INT8", (1, 4)),),
                ),
                batch_max=0,
                parameter_count=12,
                weights_bytes=12,
                frame_bytes=0,
                group_count=1,
                buckets=(BucketView((), 800 * NS_PER_US, GroupView(0, 790 * NS_PER_US, 0, 1)),),
                bound=BoundView(None, BoundOrigin.UNKNOWN),
                verdict=Verdict(
                    None, "Not known at this moment: cpu:1 has not told its bound. Ask again."
                ),
            ),
        ),
        VersionView("", ModelState.UNAVAILABLE, "model.toml is not\nTOML"),
    ),
)
"""Nothing varies, the bound is not known, and one version has no manifest."""
