"""Requests that share a run on a real device: each gets what it would get alone.

A request waits for others far longer than a test may take, unless a run of four rows is full: so
what runs together is what the test sent.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import InvalidManifest, ModelFaulted
from gpumuxd.node.api import InferCall, InferReply, InputTensor
from gpumuxd.node.node import Node
from gpumuxd.node.settings import NodeSettings
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.programs.exporter import export_model
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB
from tests.programs.networks import bert_module, tokens

Rows = NDArray[np.int64]

VOCABULARY = 50

POLITE = 'priority_max = "BEST_EFFORT"\n'
"""No bound, which would keep a run from being measured where the machine is slow."""

MANIFEST = f"""\
{POLITE}
[batching]
rows_max = 4
delay_ms_max = 10_000
pad.tokens = {{ input_ids = 0, attention_mask = 0 }}
"""


@pytest.fixture(scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    repository = tmp_path_factory.mktemp("repository")
    torch.manual_seed(3)
    example = tokens(2)
    artifact = repository / "alone" / "1" / "model.pt2"
    artifact.parent.mkdir(parents=True)
    export_model(
        bert_module(),
        example,
        artifact,
        dynamic={name: {0: "batch", 1: "tokens"} for name in example},
        sizes={"tokens": (1, 16)},
        output_names=("sentence",),
    )
    for name in ("together", "wrong"):
        shutil.copytree(repository / "alone", repository / name)
    (repository / "alone" / "model.toml").write_text(POLITE)
    (repository / "together" / "model.toml").write_text(MANIFEST)
    (repository / "wrong" / "model.toml").write_text(MANIFEST.replace("tokens", "words"))
    device = DeviceSettings("cpu:0", arena_bytes=4 * MIB, profile_passes=1, profile_batch_max=2)
    node = Node(
        NodeSettings(
            repository_paths=(repository,),
            devices=(device,),
            startup_models=("alone", "together"),
        )
    )
    await node.start()
    assert await node.load_startup_models() == {}
    yield node
    await node.drain()
    await node.stop()


def sentence(seed: int, rows: int, length: int) -> Rows:
    return np.random.default_rng(seed).integers(1, VOCABULARY, (rows, length))


async def infer(node: Node, model: str, ids: Rows) -> InferReply:
    inputs = [
        InputTensor(name, "INT64", ids.shape, value.tobytes())
        for name, value in (("input_ids", ids), ("attention_mask", np.ones_like(ids)))
    ]
    return await node.infer(InferCall(DEFAULT_TENANT, model, "", 0, None, monotonic_ns(), inputs))


def values(reply: InferReply) -> NDArray[np.float32]:
    (output,) = reply.outputs
    return np.frombuffer(output.data, np.float32).reshape(output.shape)


async def check_alone(node: Node, sent: Sequence[Rows], replies: Sequence[InferReply]) -> None:
    for ids, reply in zip(sent, replies, strict=True):
        alone = values(await infer(node, "alone", ids))
        np.testing.assert_allclose(values(reply), alone, rtol=0, atol=1e-5)


async def test_each_gets_what_it_would_get_alone(node: Node) -> None:
    sent = [sentence(seed, 1, length) for seed, length in enumerate((7, 3, 16, 1))]
    replies = await asyncio.gather(*(infer(node, "together", ids) for ids in sent))
    assert [reply.report.batch_rows for reply in replies] == [4] * 4
    assert [reply.report.leads_batch for reply in replies].count(True) == 1
    await check_alone(node, sent, replies)


async def test_who_brings_rows_counts_by_them(node: Node) -> None:
    sent = [sentence(1, 3, 5), sentence(2, 1, 9)]
    replies = await asyncio.gather(*(infer(node, "together", ids) for ids in sent))
    assert [reply.report.batch_rows for reply in replies] == [4, 4]
    await check_alone(node, sent, replies)


async def test_who_fills_a_run_by_itself_waits_for_nobody(node: Node) -> None:
    sent = [sentence(1, 4, 5), sentence(2, 6, 5)]
    replies = await asyncio.gather(*(infer(node, "together", ids) for ids in sent))
    assert [reply.report.batch_rows for reply in replies] == [4, 6]
    await check_alone(node, sent, replies)


async def test_a_bad_request_fails_nobody_else(node: Node) -> None:
    sent = [sentence(seed, 1, 6) for seed in range(4)]
    sent[1][0, 2] = VOCABULARY + 10  # a row that the table does not have
    asked = [infer(node, "together", ids) for ids in sent]
    replies = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(replies[1], ModelFaulted), replies
    good = [reply for reply in replies if isinstance(reply, InferReply)]
    assert [reply.report.batch_rows for reply in good] == [1] * 3
    await check_alone(node, [sent[0], *sent[2:]], good)


async def test_who_is_cancelled_while_it_waits_takes_no_place(node: Node) -> None:
    sent = [sentence(seed, 1, 6) for seed in range(5)]
    waiting = [asyncio.create_task(infer(node, "together", ids)) for ids in sent[:3]]
    await asyncio.sleep(0)  # each is sent in its first step
    waiting[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    rest = await asyncio.gather(*(infer(node, "together", ids) for ids in sent[3:]))
    replies = [await waiting[0], await waiting[2], *rest]
    assert [reply.report.batch_rows for reply in replies] == [4] * 4
    await check_alone(node, [sent[0], *sent[2:]], replies)


async def test_the_page_says_what_was_found(node: Node) -> None:
    detail = await node.model_detail(DEFAULT_TENANT, "together", "")
    loaded = detail.versions[0].loaded
    assert loaded is not None
    assert any(note.startswith("Batching: up to 4 rows share a run") for note in loaded.notes)


async def test_a_manifest_that_does_not_fit_is_no_load(node: Node) -> None:
    with pytest.raises(InvalidManifest, match="no dimension 'words' that varies"):
        await node.load(DEFAULT_TENANT, "wrong")
