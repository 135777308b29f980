"""Pages of models as a node gives them: every field has a value of its own."""

from gpumuxd.domain import PriorityClass
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.node.api import (
    BoundOrigin,
    BoundView,
    BucketView,
    ExplanationView,
    GroupView,
    LoadedView,
    ModelDetail,
    ModelState,
    PolicyView,
    SizedTensor,
    SliceView,
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
                replicas=("cpu:0",),
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
                    "Not preemptible within the bound at batch 16 and more: its longest group "
                    "(nodes 96 .. 98) takes 11.20 ms, "
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

SEGMENTS_WHY = ExplanationView(
    name="segments",
    version="2",
    device="cpu:0",
    sizes=(("batch", 16), ("height", 256), ("width", 256)),
    inputs=(SizedTensor("image", "FP32", (16, 3, 256, 256)),),
    priority_class=PriorityClass.STANDARD,
    mode="bounded",
    reason="at most 8.000 ms may be in flight: laxity of voice",
    bound=BoundView(8 * NS_PER_MS, BoundOrigin.LAXITY, "voice"),
    group_count=5,
    group_ns=(3 * NS_PER_MS, 4 * NS_PER_MS, 11_200 * NS_PER_US, NS_PER_MS, 800 * NS_PER_US),
    run_ns=20 * NS_PER_MS,
    slice_count=3,
    slices=(
        SliceView(0, 2, 7 * NS_PER_MS),
        SliceView(2, 3, 11_200 * NS_PER_US),
        SliceView(3, 5, 1_800 * NS_PER_US),
    ),
    window=2,
    slice_ns=7_500 * NS_PER_US,
    floor=GroupView(2, 11_200 * NS_PER_US, 96, 99),
    is_floor_over_bound=True,
    exec_ns=300 * NS_PER_US,
    preempt_ns=11_300 * NS_PER_US,
    preempt_expected_ns=6_100 * NS_PER_US,
    is_guess=False,
    is_cost_doubtful=True,
)

FIXED_WHY = ExplanationView(
    name="fixed",
    version="3",
    device="cpu:1",
    sizes=(),
    inputs=(SizedTensor("x", "INT64", ()),),
    priority_class=PriorityClass.BEST_EFFORT,
    mode="least_delay",
    reason="no model that could be ordered ahead of it has an slo_ms",
    bound=BoundView(None, BoundOrigin.LEAST_DELAY),
    group_count=7,
    group_ns=(),
    run_ns=0,
    slice_count=0,
    slices=(),
    window=1,
    slice_ns=0,
    floor=None,
    is_floor_over_bound=False,
    exec_ns=0,
    preempt_ns=0,
    preempt_expected_ns=0,
    is_guess=True,
)
