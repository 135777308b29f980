"""The page of a model: what is told of it, whether it yields within the bound, and to whom."""

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from gpumuxd.domain import Bucket, PriorityClass
from gpumuxd.models.manifest import DEFAULT_MANIFEST, Manifest
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.models.version_policy import VersionPolicy
from gpumuxd.node.api import (
    BoundOrigin,
    BoundView,
    BucketView,
    GroupView,
    IndexEntry,
    LoadedView,
    ModelState,
    Tenant,
)
from gpumuxd.node.loading import LoadedArtifact
from gpumuxd.node.model_page import loaded_view, model_detail
from gpumuxd.node.model_table import VersionEntry, VersionFacts, key_of, name_of_key
from gpumuxd.node.preemptible import bound_for, bound_of, sizes_text, slo_note, verdict
from gpumuxd.node.settings import TenantSettings
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.settings import DeviceSettings, Order, SchedulerSettings, Slicing
from gpumuxd.units import NS_PER_MS
from gpumuxd.wire.frames import LongGroup, ModelLoaded, Statistics

MS = NS_PER_MS

BATCH = Symbol("batch", 1, 64)
TIME = Symbol("time", 1, 512)


def spec_of(*symbols: Symbol, fixed: int = 4) -> ModelSpec:
    shape = (*((symbol.name,) for symbol in symbols), fixed)
    names = [symbol.name for symbol in symbols]
    return ModelSpec(
        inputs=(TensorSpec("x", "FP32", shape),),
        outputs=(TensorSpec("y", "FP32", shape),),
        symbols=symbols,
        batch_symbol="batch" if "batch" in names else None,
    )


def measured(sizes: Bucket, longest_ms: int, nodes: tuple[int, int] = (12, 15)) -> BucketView:
    return BucketView(sizes, 3 * longest_ms * MS, GroupView(4, longest_ms * MS, *nodes))


def bound(ms: int, origin: BoundOrigin = BoundOrigin.STATED, model: str = "") -> BoundView:
    return BoundView(ms * MS, origin, model)


BY_BATCH = [measured((1,), 1), measured((4,), 3), measured((8,), 6), measured((16,), 11)]
BY_BOTH = [measured((1, 128), 1), measured((1, 256), 9), measured((4, 128), 3)]


@pytest.mark.parametrize(
    ("spec", "buckets", "limit", "sentence"),
    [
        # what is measured is within the bound, one that is exactly as long too
        (
            spec_of(BATCH),
            BY_BATCH,
            bound(11),
            "Preemptible within the bound of 11.00 ms at every profiled size.",
        ),
        (spec_of(), [measured((), 2)], bound(2), "Preemptible within the bound of 2.00 ms."),
        # from some batch on
        (
            spec_of(BATCH),
            BY_BATCH,
            bound(5),
            "Not preemptible within the bound at batch 8 and more: its longest group "
            "(nodes 12 .. 14) takes 11.00 ms at "
            "batch 16, 6.00 ms beyond the bound of 5.00 ms; a request of that size can delay "
            "urgent work by 11.00 ms.",
        ),
        (
            spec_of(BATCH),
            BY_BATCH,
            bound(8),
            "Not preemptible within the bound at batch 16 and more: its longest group "
            "(nodes 12 .. 14) takes 11.00 ms, 3.00 ms "
            "beyond the bound of 8.00 ms; a request of that size can delay urgent work by "
            "11.00 ms.",
        ),
        # everywhere
        (
            spec_of(BATCH),
            BY_BATCH,
            bound(0),
            "Not preemptible within the bound at any profiled size: its longest group "
            "(nodes 12 .. 14) takes 11.00 ms at "
            "batch 16, 11.00 ms beyond the bound of 0 us; any request for it can delay urgent "
            "work by 11.00 ms.",
        ),
        (
            spec_of(),
            [measured((), 2, (7, 8))],
            bound(1),
            "Not preemptible within the bound: its longest group (node 7) takes 2.00 ms, 1.00 ms "
            "beyond the bound of 1.00 ms; any request for it can delay urgent work by 2.00 ms.",
        ),
        # at sizes that are not just the large batches
        (
            spec_of(BATCH, TIME),
            BY_BOTH,
            bound(5),
            "Not preemptible within the bound at batch 1, time 256: its longest group "
            "(nodes 12 .. 14) takes 9.00 ms, 4.00 ms "
            "beyond the bound of 5.00 ms; a request of such a size can delay urgent work by "
            "9.00 ms.",
        ),
        # a request can't be that large
        (
            spec_of(BATCH),
            [*BY_BATCH[:2], replace(BY_BATCH[2], is_allowed=False)],
            bound(5),
            "Preemptible within the bound of 5.00 ms at every profiled size.",
        ),
    ],
)
def test_the_verdict_is_a_plain_sentence(
    spec: ModelSpec, buckets: list[BucketView], limit: BoundView, sentence: str
) -> None:
    told = verdict(spec, buckets, limit, "cpu:0")
    assert told.sentence == sentence
    assert told.is_preemptible is sentence.startswith("Preemptible")
    assert bool(told.advice) is not told.is_preemptible


@pytest.mark.parametrize(
    ("buckets", "limit", "advice"),
    [
        # the largest batch that is in time, finer groups, and what gives the bound
        (
            BY_BATCH,
            bound(5),
            "Set batch_max = 4 in model.toml, or lower group_target_ms, so that groups are cut "
            "shorter, or raise preemption_delay_ms_max.",
        ),
        (
            [measured((1,), 9)],
            bound(5, BoundOrigin.SLICE_MAX),
            "Lower group_target_ms, so that groups are cut shorter, or raise slice_ms_max.",
        ),
        (
            [measured((1,), 9, (3, 4))],
            bound(5, BoundOrigin.LAXITY, "voice"),
            "That group is one operator, which can't be cut: raise slo_ms of voice.",
        ),
        (
            [measured((1,), 1, (3, 4)), measured((2,), 9, (3, 4))],
            bound(5, BoundOrigin.LAXITY),
            "Set batch_max = 1 in model.toml, or raise slo_ms of the model that sets the bound.",
        ),
        ([measured((1,), 5)], bound(5), ""),
    ],
)
def test_advice_is_what_would_help(
    buckets: list[BucketView], limit: BoundView, advice: str
) -> None:
    assert verdict(spec_of(BATCH), buckets, limit, "cpu:0").advice == advice


@pytest.mark.parametrize(
    ("origin", "is_preemptible", "words"),
    [
        (BoundOrigin.NO_SLICING, False, "slicing = none a whole inference is launched at once"),
        (BoundOrigin.FIXED, None, "slicing is a baseline with fixed sync points"),
        (BoundOrigin.NO_ORDER, False, "order = fifo nothing is ordered ahead on cpu:7"),
        (BoundOrigin.UNKNOWN, None, "Not known at this moment: cpu:7"),
        (BoundOrigin.LEAST_DELAY, None, "No bound is promised on cpu:7: no model there has"),
    ],
)
def test_without_a_bound_the_sentence_says_why(
    origin: BoundOrigin, is_preemptible: bool | None, words: str
) -> None:
    told = verdict(spec_of(BATCH), BY_BATCH, BoundView(None, origin), "cpu:7")
    assert (told.is_preemptible, told.advice) == (is_preemptible, "")
    assert words in told.sentence
    if origin is BoundOrigin.NO_SLICING:
        assert "up to 33.00 ms of this model" in told.sentence, "the longest run"


def late_for(laxity_ms: int, bound_ms: int = 2) -> BoundView:
    return BoundView(bound_ms * MS, BoundOrigin.SLICE_MAX, "", laxity_ms * MS, "voice")


@pytest.mark.parametrize(
    ("laxity_ms", "is_beyond_laxity", "sentence", "advice", "origin"),
    [
        (11, False, "Not preemptible within the bound at", "raise slice_ms_max.", "slice_ms_max"),
        (
            8,
            True,
            "No bound can be kept at batch 16 and more: its longest group (nodes 12 .. 14) takes "
            "11.00 ms, more than the laxity of voice, 8.00 ms; a request of that size can make "
            "voice miss its slo_ms.",
            "or raise slo_ms of voice by 3.00 or more.",
            "slice_ms_max",
        ),
        (0, True, "No bound can be kept at any profiled size", "by 11.00 or more.", "slo"),
    ],
)
def test_an_slo_that_can_not_be_kept_is_told_with_both_sides(
    laxity_ms: int, is_beyond_laxity: bool, sentence: str, advice: str, origin: str
) -> None:
    spec, limit = spec_of(BATCH), late_for(laxity_ms)
    told = verdict(spec, BY_BATCH, limit, "cpu:0")
    assert (told.is_preemptible, told.is_beyond_laxity) == (False, is_beyond_laxity)
    assert told.sentence.startswith(sentence)
    assert told.advice.endswith(advice)
    assert bound_for(spec, BY_BATCH, limit).origin == origin


@pytest.mark.parametrize(
    ("slo_us", "said"),
    [
        (None, ""),
        (780, ""),
        (500, "Its SLO can't be met: its own run takes 780 us, more than its slo_ms of 0.5."),
    ],
)
def test_an_slo_shorter_than_the_own_run_is_called_impossible(
    slo_us: int | None, said: str
) -> None:
    buckets = [replace(measured((1,), 1), run_ns=780_000), measured((8,), 9)]
    assert slo_note(None if slo_us is None else slo_us * 1000, buckets) == said


def test_many_sizes_are_not_all_named() -> None:
    buckets = [measured((1, time), 9) for time in (1, 2, 4, 8, 16)] + [measured((2, 1), 1)]
    told = verdict(spec_of(BATCH, TIME), buckets, bound(5), "cpu:0")
    named = "batch 1, time 1; batch 1, time 2; batch 1, time 4; 2 more: "
    assert f"within the bound at {named}" in told.sentence


def test_a_size_is_told_by_what_differs() -> None:
    spec = spec_of(BATCH, TIME)
    both, one = [(1, 128), (1, 256), (4, 128)], [(1, 128)]
    assert sizes_text(spec, (1, 128), both) == "batch 1, time 128"
    assert sizes_text(spec, (1, 128), [(1, 128), (4, 128)]) == "batch 1"
    assert sizes_text(spec, (1, 128), one) == "batch 1, time 128", "the only one"


STATISTICS = Statistics(*[0] * 13)

AUTO, STATED_NS = SchedulerSettings(), "preemption_delay_ns_max"


@pytest.mark.parametrize(
    ("settings", "bound_ns", "told_origin", "view"),
    [
        # settings                             ns      origin told       the view
        (AUTO, 2 * MS, "slice_ns_max", BoundView(2 * MS, BoundOrigin.SLICE_MAX)),
        (AUTO, 5 * MS, STATED_NS, BoundView(5 * MS, BoundOrigin.STATED)),
        (AUTO, 0, "laxity", BoundView(0, BoundOrigin.LAXITY, "voice/3#4")),
        (AUTO, 9 * MS, "least_delay", BoundView(None, BoundOrigin.LEAST_DELAY)),
        (
            SchedulerSettings(slicing=Slicing.EVERY, slicing_operators=4),
            9 * MS,
            "slice_ns_max",
            BoundView(None, BoundOrigin.FIXED),
        ),
        (AUTO, 1 * MS, "something new", BoundView(None, BoundOrigin.UNKNOWN)),
        (AUTO, None, "", BoundView(None, BoundOrigin.UNKNOWN)),
        (
            SchedulerSettings(slicing=Slicing.NONE),
            2 * MS,
            "slice_ns_max",
            BoundView(None, BoundOrigin.NO_SLICING),
        ),
        (
            SchedulerSettings(order=Order.FIFO),
            0,
            "fifo: nobody is ordered ahead",
            BoundView(None, BoundOrigin.NO_ORDER),
        ),
        (SchedulerSettings(order=Order.FIFO), None, "", BoundView(None, BoundOrigin.NO_ORDER)),
    ],
)
def test_where_a_bound_comes_from(
    settings: SchedulerSettings, bound_ns: int | None, told_origin: str, view: BoundView
) -> None:
    statistics = None
    if bound_ns is not None:
        statistics = Statistics(
            *[0] * 10, bound_ns, 2, 0, bound_origin=told_origin, bound_model="voice/3#4"
        )
    assert bound_of(settings, statistics, lambda key: key) == view


def test_a_key_says_whose_it_is() -> None:
    key = key_of(VersionEntry("a.b", 3), 17)
    assert name_of_key(key) == "a.b"


@dataclass(eq=False)
class FakeLink:
    """What a page asks of a device's link."""

    statistics: Statistics | None
    settings: DeviceSettings = field(default_factory=DeviceSettings)
    is_alive: bool = True

    async def fresh_statistics(self) -> Statistics | None:
        return self.statistics


@dataclass
class FakeReplica:
    """A replica, without what only requests need."""

    link: FakeLink
    artifact: LoadedArtifact
    loaded: ModelLoaded
    manifest: Manifest = DEFAULT_MANIFEST

    @property
    def device(self) -> str:
        return self.link.settings.device


def replica_of(
    spec: ModelSpec,
    buckets: dict[Bucket, list[int]],
    statistics: Statistics | None = None,
    manifest: Manifest = DEFAULT_MANIFEST,
) -> Any:
    """With these buckets, of which the longest groups take so many milliseconds."""
    loaded = ModelLoaded(
        "m/1#1",
        group_count=20,
        longest_group_ns=7,
        run_ns=tuple((bucket, 100 * MS) for bucket in buckets),
        weights_bytes=64,
        frame_bytes=128,
        profile_was_cached=False,
        longest_groups=tuple(
            tuple(LongGroup(i, ms * MS, i, i + 1) for i, ms in enumerate(times))
            for times in buckets.values()
        ),
    )
    artifact = LoadedArtifact("the hash", spec, -1, -1, platform="pytorch_pt2", parameter_count=16)
    return FakeReplica(FakeLink(statistics), artifact, loaded, manifest)


def view_of(
    spec: ModelSpec,
    buckets: dict[Bucket, list[int]],
    bound_ms: int = 5,
    batch_max: int | None = None,
) -> LoadedView:
    statistics = Statistics(*[0] * 10, bound_ms * MS, 2, 0, bound_origin="slice_ns_max")
    manifest = replace(DEFAULT_MANIFEST, batch_max=batch_max)
    return loaded_view(replica_of(spec, buckets, manifest=manifest), statistics, lambda key: key)


def test_a_loaded_version_shows_what_is_known_of_it() -> None:
    view = view_of(spec_of(BATCH), {(1,): [2, 1], (64,): [9, 5, 4]})
    assert (view.platform, view.device, view.artifact_hash) == ("pytorch_pt2", "cpu:0", "the hash")
    assert (view.parameter_count, view.weights_bytes, view.frame_bytes) == (16, 64, 128)
    assert (view.group_count, view.batch_max) == (20, 64)
    assert [(each.sizes, each.run_ns, each.beyond_count) for each in view.buckets] == [
        ((1,), 100 * MS, 0),
        ((64,), 100 * MS, 1),
    ]
    assert view.buckets[1].longest == GroupView(0, 9 * MS, 0, 1)
    assert view.verdict.is_preemptible is False


def test_when_all_groups_that_are_told_are_beyond_there_may_be_more() -> None:
    (one,) = view_of(spec_of(BATCH), {(1,): [9, 8]}).buckets
    assert (one.beyond_count, one.has_more_beyond) == (2, True)
    (one,) = view_of(spec_of(BATCH), {(1,): [9, 3]}).buckets
    assert (one.beyond_count, one.has_more_beyond) == (1, False)
    (one,) = view_of(spec_of(BATCH), {(1,): [9] * 20}).buckets
    assert (one.beyond_count, one.has_more_beyond) == (20, False), "all there are"


@pytest.mark.parametrize(
    ("batch_max", "allowed", "rows"),
    [
        # manifest, buckets that its requests get, rows
        (None, [1, 2, 4, 8], 64),
        (100, [1, 2, 4, 8], 64),
        (8, [1, 2, 4, 8], 8),
        (5, [1, 2, 4, 8], 5),
        (4, [1, 2, 4], 4),
        (1, [1], 1),
    ],
)
def test_batches_that_the_manifest_forbids_count_for_nothing(
    batch_max: int | None, allowed: list[int], rows: int
) -> None:
    buckets: dict[Bucket, list[int]] = {(size,): [size] for size in (1, 2, 4, 8)}
    view = view_of(spec_of(BATCH), buckets, batch_max=batch_max)
    assert [each.sizes[0] for each in view.buckets if each.is_allowed] == allowed
    assert view.batch_max == rows
    assert view.verdict.is_preemptible is (8 not in allowed)


@pytest.mark.parametrize(
    ("spec", "buckets", "notes"),
    [
        (spec_of(Symbol("batch", 1, 8)), [(1,), (2,), (4,), (8,)], []),
        (
            spec_of(BATCH),
            [(1,), (8,)],
            [
                "batch was measured at 1, 8 of 1 .. 64; how long other sizes take is learnt from "
                "requests."
            ],
        ),
        (
            spec_of(Symbol("batch", 1, 1), TIME),
            [(1, 128)],
            [
                "time was measured at 128 of 1 .. 512; how long other sizes take is learnt from "
                "requests."
            ],
        ),
        (
            spec_of(fixed=3),
            [()],
            ["Exported with a fixed batch of 3: `gpumuxd export` makes the batch dynamic."],
        ),
    ],
)
def test_notes_say_what_is_fixed_and_what_was_not_measured(
    spec: ModelSpec, buckets: list[Bucket], notes: list[str]
) -> None:
    assert list(view_of(spec, {bucket: [1] for bucket in buckets}).notes) == notes


@pytest.mark.parametrize(
    ("left_out", "batch_max", "named"),
    [
        # left out, manifest, what the note names
        ([(4,), (8,)], None, "batch 4; batch 8."),
        ([(4,), (8,)], 4, "batch 4."),
        ([(4,), (8,)], 2, None),
        ([(4,), (8,), (16,), (32,), (64,)], None, "batch 4; batch 8; batch 16; 2 more."),
    ],
)
def test_a_note_says_what_would_have_taken_too_long_to_measure(
    left_out: list[Bucket], batch_max: int | None, named: str | None
) -> None:
    manifest = replace(DEFAULT_MANIFEST, batch_max=batch_max)
    replica = replica_of(spec_of(BATCH), {(1,): [1], (2,): [1]}, manifest=manifest)
    replica.loaded = msgspec.structs.replace(replica.loaded, left_out=tuple(left_out))
    notes = loaded_view(replica, STATISTICS, lambda key: key).notes
    told = [note for note in notes if note.startswith("Left out of the measurement: ")]
    assert bool(told) is (named is not None)
    if named is not None:
        assert f": {named} A run there would" in told[0]


def test_inputs_that_share_no_first_size_are_fixed_without_a_batch() -> None:
    inputs = (TensorSpec("a", "FP32", (1, 4)), TensorSpec("b", "FP32", ()))
    spec = ModelSpec(inputs=inputs, outputs=inputs)
    (note,) = view_of(spec, {(): [1]}).notes
    assert note == "Exported with fixed sizes: `gpumuxd export` makes the batch dynamic."


ADMIN = Tenant("admin", is_admin=True)
VOICE = Tenant("voice", priority_max=PriorityClass.REALTIME)
SEARCH = Tenant("search", priority_max=PriorityClass.BEST_EFFORT)
DIRECTORY = TenantDirectory([TenantSettings(tenant) for tenant in (ADMIN, VOICE, SEARCH)])
READY = IndexEntry("m", "2", ModelState.READY)


async def page(tenant: Tenant, manifest: Manifest, bound_model: str) -> Any:
    statistics = Statistics(*[0] * 10, 4 * MS, 2, 0, bound_origin="laxity", bound_model=bound_model)
    replica = replica_of(spec_of(BATCH), {(1,): [5]}, statistics, manifest)
    facts = [
        VersionFacts(READY, manifest, replica),
        VersionFacts(IndexEntry("m", "1", ModelState.UNAVAILABLE, "unloaded"), manifest, None),
        VersionFacts(IndexEntry("m", "", ModelState.UNAVAILABLE, "no TOML"), None, None),
    ]
    return await model_detail("m", facts, tenant, DIRECTORY)


SHARED = replace(DEFAULT_MANIFEST, tenants=("voice", "search"), slo_ms=30.0, device=("cpu:0",))


async def test_an_admin_sees_all_of_it() -> None:
    detail = await page(ADMIN, SHARED, "secret/3#9")
    assert [(v.version, v.state, v.reason) for v in detail.versions] == [
        ("2", ModelState.READY, ""),
        ("1", ModelState.UNAVAILABLE, "unloaded"),
        ("", ModelState.UNAVAILABLE, "no TOML"),
    ]
    first, second, third = detail.versions
    assert first.policy.tenants == ("voice", "search")
    assert first.policy.class_max is PriorityClass.REALTIME
    assert (first.policy.slo_ns, first.policy.device) == (30 * MS, "cpu:0")
    assert first.loaded.bound == BoundView(4 * MS, BoundOrigin.LAXITY, "secret")
    assert "secret" in first.loaded.verdict.advice
    assert (second.loaded, second.policy) == (None, first.policy)
    assert (third.loaded, third.policy) == (None, None)


async def test_a_tenant_sees_nothing_of_others() -> None:
    detail = await page(SEARCH, SHARED, "secret/3#9")
    policy = detail.versions[0].policy
    assert policy.tenants == ("search",)
    assert policy.class_max is PriorityClass.BEST_EFFORT, "its own, not that of others"
    assert detail.versions[0].loaded.bound == BoundView(4 * MS, BoundOrigin.LAXITY)
    assert "voice" not in repr(detail)
    assert "secret" not in repr(detail)


async def test_a_tenant_is_told_when_the_bound_comes_from_the_model_itself() -> None:
    detail = await page(SEARCH, DEFAULT_MANIFEST, "m/2#9")
    assert detail.versions[0].policy.tenants is None
    assert detail.versions[0].loaded.bound.model == "m"


async def test_the_class_of_a_manifest_is_a_ceiling_for_all() -> None:
    manifest = replace(SHARED, priority_max=PriorityClass.STANDARD)
    for tenant, expected in (
        (ADMIN, PriorityClass.STANDARD),
        (VOICE, PriorityClass.STANDARD),
        (SEARCH, PriorityClass.BEST_EFFORT),
    ):
        detail = await page(tenant, manifest, "m/2#9")
        assert detail.versions[0].policy.class_max is expected


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        # model.toml, the page
        (VersionPolicy(latest=1), "latest"),
        (VersionPolicy(latest=2), "latest 2"),
        (VersionPolicy(), "all"),
        (VersionPolicy(listed=(1, 7)), "1, 7"),
    ],
)
async def test_which_versions_serve(policy: VersionPolicy, words: str) -> None:
    detail = await page(SEARCH, replace(SHARED, versions=policy), "m/2#9")
    assert detail.versions[0].policy.versions == words
