"""Explanations and figures as frames: split, counted, and never more than a frame holds."""

from dataclasses import replace

from gpumuxd.core.explanation import Explanation
from gpumuxd.core.statistics import DeviceStatistics, ModelStatistics, TenantMemory
from gpumuxd.device.measuring import INTERNAL_MARK
from gpumuxd.device.translate import (
    GROUPS_TOLD_MAX,
    MODELS_TOLD_MAX,
    TENANTS_TOLD_MAX,
    explanation_frame,
    statistics_frame,
)
from gpumuxd.domain import PriorityClass
from gpumuxd.wire import frames

WHY = Explanation(
    model="m/1#1",
    bucket=(4,),
    mode="slo",
    reason="because",
    priority_class=PriorityClass.STANDARD,
    group_ns=(10, 30, 20, 30),
    slice_ends=(1, 3, 4),
    window=2,
    slice_ns=50,
    bound_ns=25,
    bound_origin="laxity of voice/3#4",
    floor_ns=30,
    exec_ns=5,
    preempt_ns=80,
    preempt_expected_ns=40,
    is_guess=True,
)


def test_what_follows_from_it_is_reckoned() -> None:
    told = explanation_frame(WHY)
    assert [(s.first_group, s.end_group, s.predicted_ns) for s in told.slices] == [
        (0, 1, 10),
        (1, 3, 50),
        (3, 4, 30),
    ]
    assert (told.run_ns, told.group_count, told.slice_count) == (90, 4, 3)
    assert told.floor_group == 1, "the first of the longest"
    assert (told.bound_origin, told.bound_model) == ("laxity", "voice/3#4")
    assert explanation_frame(replace(WHY, bound_origin="slice_ns_max")).bound_model == ""


def test_what_was_never_measured_has_no_slices() -> None:
    told = explanation_frame(replace(WHY, group_ns=(), slice_ends=(1,), floor_ns=0))
    assert (told.slices, told.slice_count, told.run_ns, told.group_count) == ((), 0, 0, 0)


def test_of_very_many_groups_the_first_are_told_and_all_are_counted() -> None:
    count, long_ns = 100_000, 2**40
    many = replace(
        WHY,
        model="m" * 500,
        bucket=(2**40,) * 32,
        reason="\U0001f600" * 10_000,
        group_ns=(long_ns,) * count,
        slice_ends=tuple(range(1, count + 1)),
    )
    told = explanation_frame(many)
    assert len(frames.encode(frames.Explained(2**60, told))) <= frames.FRAME_BYTES_MAX
    assert len(told.group_ns) == len(told.slices) == GROUPS_TOLD_MAX
    assert (told.group_count, told.slice_count, told.run_ns) == (count, count, count * long_ns)


def test_figures_of_very_many_models_and_tenants_fit_a_frame() -> None:
    large = 2**62
    models = tuple(
        ModelStatistics(f"{number:0>256}", *[large] * 4, (), "", large, 2**40, large)
        for number in range(10 * MODELS_TOLD_MAX)
    )
    tenants = tuple(
        TenantMemory(f"{number:0>128}", number, large, large)
        for number in range(10 * TENANTS_TOLD_MAX)
    )
    snapshot = DeviceStatistics(*[large] * 13, models=models, tenants=tenants)
    told = statistics_frame(snapshot, large, large)
    assert len(frames.encode(told)) <= frames.FRAME_BYTES_MAX
    assert [each.model for each in told.models] == [m.model for m in models[:MODELS_TOLD_MAX]]
    assert told.model_count == len(models)
    assert [int(each.tenant) for each in told.tenants] == [*range(639, 639 - TENANTS_TOLD_MAX, -1)]


def test_memory_is_told_of_each_model_and_tenant() -> None:
    snapshot = DeviceStatistics(
        *[0] * 13,
        models=(
            ModelStatistics("m/1#1", 1, 2, 3, 4, (), "t", 100, 20, 10),
            ModelStatistics(f"{INTERNAL_MARK}m/1", 0, 0, 0, 0, (), "", 0, 5, 5),
        ),
        tenants=(TenantMemory("t", 100, 20, None), TenantMemory("u", 0, 0, 500)),
    )
    told = frames.decode(frames.encode(statistics_frame(snapshot, 7, 1000)))
    assert isinstance(told, frames.Statistics)
    assert told.models == (frames.ModelFigures("m/1#1", 1, 2, 3, 4, 100, 20, 10),)
    assert told.tenants == (
        frames.TenantFigures("t", 100, 20, None),
        frames.TenantFigures("u", 0, 0, 500),
    )
    assert (told.model_count, told.submits, told.resident_bytes) == (1, 7, 1000)
    assert told.frame_bytes_held == 25, "also those of models that are only measured"
