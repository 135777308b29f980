"""What users of other servers ran into, tried on a daemon from outside with Triton's own client.

Each test names the report it repeats. Those whose kind is tested elsewhere are not repeated:
devices that fault, hang or are killed, and what that costs whom (`tests/faults`, server#4126,
#2979, pytorch#44624, LitServe PR#532, MLServer#707); the index after loads and unloads
(`tests/daemon/test_lifecycle.py`, MLServer#957); memory over hundreds of cycles and in storms
(`bench.cycles`, `bench.storm`, server#5841, serve#1888); overload (`bench.overload`, server#7649).
Ensembles, streams of a tenant's own and processes that share a device do not exist here.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import tritonclient.grpc.aio as triton
from gpumuxd_client import AsyncClient
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gpumuxd.programs.exporter import export_model
from tests.daemon.harness import Daemon, Site
from tests.node.artifacts import export_busy, export_tiny

X: NDArray[np.float32] = np.arange(8, dtype=np.float32).reshape(2, 4)
WORK: NDArray[np.float32] = np.full((2, 384), 0.01, dtype=np.float32)

MESSAGE_MIB_MAX = 4
ROWS, WIDTH = 16, 8


class Lookup(torch.nn.Module):
    """A row of a table of 16 for each index."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, WIDTH)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(index)
        return found


class Halves(torch.nn.Module):
    """Both short kinds of floats, doubled."""

    def forward(self, half: torch.Tensor, brain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return half * 2, brain * 2


def export_models(repository: Path) -> None:
    export_tiny(repository / "tiny" / "1" / "model.pt2")
    export_busy(repository / "busy" / "1" / "model.pt2")
    torch.manual_seed(1)
    for name, module, example in (
        ("lookup", Lookup(), {"index": torch.zeros(2, 3, dtype=torch.int64)}),
        (
            "halves",
            Halves(),
            {
                "half": torch.zeros(2, 4, dtype=torch.float16),
                "brain": torch.zeros(2, 4, dtype=torch.bfloat16),
            },
        ),
    ):
        path = repository / name / "1" / "model.pt2"
        path.parent.mkdir(parents=True)
        export_model(module, example, path, batch_max=4)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    export_models(directory / "repository")
    models = ("tiny", "busy", "lookup", "halves")
    made = Site(directory, directory / "repository", startup_models=models)
    text = made.config_path.read_text()
    made.config_path.write_text(
        text.replace("[listen]\n", f"[listen]\nmessage_mib_max = {MESSAGE_MIB_MAX}\n")
    )
    with Daemon.running(made) as daemon:
        daemon.wait_notified("READY=1")
        yield made
    shutil.rmtree(directory)


@pytest.fixture
async def client(site: Site) -> AsyncIterator[Any]:
    async with triton.InferenceServerClient(site.target) as opened:
        yield opened


@pytest.fixture
async def operator(site: Site) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(site.target, retries=0) as opened:
        yield opened


def given(array: NDArray[Any], name: str = "x") -> Any:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


async def infer(client: Any, model: str, array: NDArray[Any], **options: Any) -> Any:
    return await client.infer(model, [given(array)], **options)


def status_of(result: object) -> str:
    """`StatusCode.X` of a call that failed."""
    assert isinstance(result, InferenceServerException), result
    return str(result.status()).removeprefix("StatusCode.")


async def wait_idle(operator: AsyncClient) -> Any:
    """The device once nothing of anybody is left on it."""
    while True:
        (device,) = (await operator.node_status()).devices
        if device.requests_in_flight == 0 and device.queued == 0:
            return device


# Priorities and deadlines


async def test_an_urgent_request_overtakes_all_that_wait(client: Any) -> None:
    """server#980: online requests starve behind offline ones."""
    ended: list[str] = []
    begun = asyncio.Event()

    async def ask(name: str, model: str, array: NDArray[Any], priority: int) -> None:
        await infer(client, model, array, priority=priority)
        ended.append(name)
        begun.set()

    flood = [asyncio.create_task(ask(f"batch {i}", "busy", WORK, 3)) for i in range(12)]
    await begun.wait()
    await ask("urgent", "tiny", X, 1)
    assert len(ended) < len(flood), "it was answered before the flood had ended"
    await asyncio.gather(*flood)


async def test_a_deadline_is_told_while_the_job_before_it_still_runs(client: Any) -> None:
    """server#7512: a queue timeout fired only after the long job that was running."""
    ended: list[str] = []
    begun = asyncio.Event()

    async def ask(name: str, **options: Any) -> Any:
        try:
            return await infer(client, "busy", WORK, **options)
        except InferenceServerException as error:
            return error
        finally:
            ended.append(name)
            begun.set()

    jobs = [asyncio.create_task(ask(f"job {i}", priority=1)) for i in range(12)]
    await begun.wait()
    late = await ask("late", priority=3, timeout=1_000)  # microseconds
    assert status_of(late) == "DEADLINE_EXCEEDED"
    assert len(ended) <= len(jobs), "it was told before the jobs had ended"
    await asyncio.gather(*jobs)


async def test_nothing_runs_for_those_whose_deadline_has_passed(
    client: Any, operator: AsyncClient
) -> None:
    """server#6920: the GPU works on for clients that are gone."""
    results = await asyncio.gather(
        *(infer(client, "busy", WORK, client_timeout=0.05) for _ in range(50)),
        return_exceptions=True,
    )
    missed = [r for r in results if isinstance(r, InferenceServerException)]
    assert missed, "fifty of them do not fit into their deadline"
    assert {status_of(error) for error in missed} == {"DEADLINE_EXCEEDED"}
    before = await wait_idle(operator)
    after = await wait_idle(operator)
    assert after.device_busy_ns == before.device_busy_ns


async def test_a_thousand_that_are_cancelled_at_once_leave_nothing(
    client: Any, operator: AsyncClient
) -> None:
    """server#4818, #8030 and ray#52533: cancelled work that stays, a hundredth of it for ever."""
    calls = [asyncio.ensure_future(infer(client, "busy", WORK, priority=3)) for _ in range(1000)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    for call in calls:
        call.cancel()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(end, asyncio.CancelledError) for end in ends) > 900 - len(done)
    before = await wait_idle(operator)
    np.testing.assert_array_equal((await infer(client, "tiny", X)).as_numpy("y"), X * 2 + 1)
    after = await wait_idle(operator)
    assert after.restarts == before.restarts == 0


# What is sent


async def test_an_index_out_of_range_is_its_sender_s_error_alone(client: Any) -> None:
    """pytorch#44624: one bad input bricks the session of everybody."""

    async def look_up(index: int) -> Any:
        array = np.full((1, 3), index, dtype=np.int64)
        return await client.infer("lookup", [given(array, "index")])

    expected = (await look_up(1)).as_numpy("output_0")
    results: list[Any] = await asyncio.gather(
        *(look_up(index) for index in [1, ROWS, 1, -ROWS - 1, 1, 1 << 40] * 5),
        return_exceptions=True,
    )
    for good, bad in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(good.as_numpy("output_0"), expected)
        assert status_of(bad) in ("INTERNAL", "INVALID_ARGUMENT")


async def test_short_floats_are_exact_and_only_raw(client: Any) -> None:
    """server#8044 and client PR#897: FP16 and BF16 have no typed contents."""
    half = np.array([[1.5, -2, 3, 4]], dtype=np.float16)
    brain = np.array([[0.25, 1, -3, 7]], dtype=ml_dtypes.bfloat16)
    answer = await client.infer("halves", [given(half, "half"), given(brain, "brain")])
    outputs = [answer.as_numpy(f"output_{i}") for i in range(2)]
    assert [o.dtype for o in outputs] == [half.dtype, brain.dtype]
    np.testing.assert_array_equal(outputs[0], half * 2)
    np.testing.assert_array_equal(outputs[1].astype(np.float32), brain.astype(np.float32) * 2)


@pytest.mark.parametrize(("rows", "is_good"), [(1, True), (2, True), (4, True), (5, False)])
async def test_every_batch_that_is_advertised_runs(client: Any, rows: int, is_good: bool) -> None:
    """pytorch#133653: an export that works for 2 and fails for 1."""
    config = (await client.get_model_config("tiny")).config
    assert config.max_batch_size == 4
    array = np.ones((rows, 4), dtype=np.float32)
    if is_good:
        answer = await infer(client, "tiny", array)
        np.testing.assert_array_equal(answer.as_numpy("n"), np.full(rows, 4))
    else:
        with pytest.raises(InferenceServerException, match="expected batch of 1 to 4, got 5"):
            await infer(client, "tiny", array)


@pytest.mark.parametrize("over_bytes", [-65536, 1, 1 << 20])
async def test_messages_around_the_limit(client: Any, over_bytes: int) -> None:
    """server#5840: a crash near 4 MB."""
    size = (MESSAGE_MIB_MAX << 20) + over_bytes
    array = np.zeros((1, size // 4), dtype=np.float32)
    with pytest.raises(InferenceServerException) as caught:
        await infer(client, "tiny", array)
    is_over = over_bytes > 0
    assert status_of(caught.value) == ("RESOURCE_EXHAUSTED" if is_over else "INVALID_ARGUMENT")
    await infer(client, "tiny", X)


async def test_a_shape_of_gigabytes_with_a_few_bytes_costs_nothing(client: Any) -> None:
    """server#3916: bad_alloc on a huge input."""
    tensor = triton.InferInput("x", [1 << 27, 4], "FP32")
    tensor._raw_content = X.tobytes()
    with pytest.raises(InferenceServerException) as caught:
        await client.infer("tiny", [tensor])
    assert status_of(caught.value) == "INVALID_ARGUMENT"
    await infer(client, "tiny", X)


NAMES = (
    "../tiny", "tiny/../../etc", "/etc/passwd", "tiny/1", "%2e%2e%2ftiny", "tiny\0", "t" * 5000,
    "mod\u00e9le", "mode\u0301le", "..", ".", " tiny", "TINY",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_a_name_leads_nowhere_but_to_a_model(client: Any, name: str) -> None:
    """server PR#8400 and core PR#500: names that leave the repository."""
    with pytest.raises(InferenceServerException) as loaded:
        await client.load_model(name)
    with pytest.raises(InferenceServerException) as asked:
        await infer(client, name, X)
    for caught in (loaded, asked):
        assert status_of(caught.value) in ("NOT_FOUND", "INVALID_ARGUMENT")
        assert "/repository" not in str(caught.value), "no path of ours is told"


# Models that come and go


async def test_an_unload_with_many_in_flight_loses_none(client: Any) -> None:
    """server#6594, #4924: a crash when a model is unloaded right after an inference."""
    calls = [asyncio.ensure_future(infer(client, "busy", WORK)) for _ in range(32)]
    await asyncio.sleep(0)
    await client.unload_model("busy")
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            assert status_of(result) == "UNAVAILABLE"
        else:
            assert result.as_numpy("y").shape == (2, 384)
    assert not await client.is_model_ready("busy")
    await client.load_model("busy")
    await infer(client, "busy", WORK)


async def test_the_last_call_that_was_acknowledged_counts(client: Any) -> None:
    """core PR#309, server#6359: an unload that was taken for a duplicate and lost."""
    rng = np.random.default_rng(1)
    for _ in range(6):
        loads = rng.integers(2, size=4)
        await asyncio.gather(
            *(
                client.load_model("lookup") if is_load else client.unload_model("lookup")
                for is_load in loads
            ),
            return_exceptions=True,
        )
        is_load = bool(rng.integers(2))
        await (client.load_model("lookup") if is_load else client.unload_model("lookup"))
        assert await client.is_model_ready("lookup") is is_load
    await client.load_model("lookup")


async def test_many_loads_at_once_beside_one_that_serves(client: Any) -> None:
    """server#6670: models that are loaded together break each other."""
    names = ("busy", "lookup", "halves")
    for name in names:
        await client.unload_model(name)
    loads = asyncio.gather(*(client.load_model(name) for name in names))
    while not loads.done():
        answer = await infer(client, "tiny", X, priority=1)
        np.testing.assert_array_equal(answer.as_numpy("y"), X * 2 + 1)
    await loads
    for name in names:
        assert await client.is_model_ready(name)


async def test_results_are_whose_they_are(client: Any) -> None:
    """pytorch#23729 and onnxruntime#32342: memory that was used again too early."""

    async def ask(i: int) -> None:
        x = X + np.float32(i)
        answer = await infer(client, "tiny", x, priority=1 + i % 3)
        np.testing.assert_array_equal(answer.as_numpy("y"), x * 2 + 1)
        np.testing.assert_array_equal(answer.as_numpy("n"), x.sum(axis=1))

    busy = [asyncio.ensure_future(infer(client, "busy", WORK, priority=3)) for _ in range(5)]
    for first in range(0, 500, 50):
        await asyncio.gather(*(ask(first + i) for i in range(50)))
    await asyncio.gather(*busy)
