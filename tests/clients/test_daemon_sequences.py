"""Sequences over the wire, from stock `tritonclient[grpc]` and from our own client, in a daemon
that serves a real detector of speech."""

import contextlib
import os
import queue
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from gpumuxd_client import Client, SequenceStep
from gpumuxd_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    SequenceAborted,
    SequenceLost,
    SequenceUnknown,
)
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, STATE_SHAPE, load_silero
from gpumuxd.programs.exporter import export_model
from tests.daemon.harness import LIMIT_S, Daemon, Site
from tests.node.artifacts import export_tiny

Frame = NDArray[np.float32]

MANIFEST = """
[sequence]
state = [{ input = "state", output = "stateN" }]
"""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, Daemon]]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    repository = directory / "repository"
    export_tiny(repository / "tiny" / "1" / "model.pt2")
    path = repository / "vad" / "1" / "model.pt2"
    path.parent.mkdir(parents=True)
    example = {
        "audio": torch.zeros(2, CONTEXT_SAMPLES + FRAME_SAMPLES),
        "state": torch.zeros(2, *STATE_SHAPE),
    }
    export_model(load_silero(), example, path, batch_max=4, output_names=("probability", "stateN"))
    (repository / "vad" / "model.toml").write_text(MANIFEST)
    site = Site(directory, repository, startup_models=("vad", "tiny"))
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        yield site, daemon
    shutil.rmtree(directory)


@pytest.fixture
def client(served: tuple[Site, Daemon]) -> Iterator[Client]:
    site, _ = served
    with Client(site.target) as opened:
        yield opened


@pytest.fixture
def stock(served: tuple[Site, Daemon]) -> Iterator[Any]:
    site, _ = served
    with triton.InferenceServerClient(site.target) as opened:
        yield opened


def noise(seed: int, count: int) -> Sequence[Frame]:
    frames = np.random.default_rng(seed).normal(0, 0.3, (count, 1, CONTEXT_SAMPLES + FRAME_SAMPLES))
    return list(frames.astype(np.float32))


def by_hand(client: Client, frames: Sequence[Frame]) -> list[Frame]:
    """The probabilities that a client gets that keeps the state itself."""
    state, found = np.zeros((1, *STATE_SHAPE), np.float32), []
    for frame in frames:
        result = client.infer("vad", {"audio": frame, "state": state})
        state = result["stateN"]
        found.append(result["probability"])
    return found


def audio(frame: Frame) -> list[Any]:
    tensor = triton.InferInput("audio", list(frame.shape), "FP32")
    tensor.set_data_from_numpy(frame)
    return [tensor]


def step(client: Client, frame: Frame, *about: Any, **options: Any) -> Any:
    return client.infer("vad", {"audio": frame}, sequence=SequenceStep(*about), **options)


def test_our_client_has_its_state_kept(client: Client) -> None:
    frames = noise(1, 6)
    expected = by_hand(client, frames)
    found = [step(client, frame, 7, i == 0, i == 5) for i, frame in enumerate(frames)]
    assert [set(result) for result in found] == [{"probability"}] * 6
    np.testing.assert_array_equal([result["probability"] for result in found], expected)


@pytest.mark.parametrize("name", [9, "a microphone"])
def test_the_stock_client_has_its_state_kept(client: Client, stock: Any, name: int | str) -> None:
    frames = noise(2, 6)
    found = [
        stock.infer(
            "vad", audio(frame), sequence_id=name, sequence_start=i == 0, sequence_end=i == 5
        ).as_numpy("probability")
        for i, frame in enumerate(frames)
    ]
    np.testing.assert_array_equal(found, by_hand(client, frames))


def test_steps_of_a_stream_run_in_its_order_without_waiting_for_answers(
    client: Client, stock: Any
) -> None:
    heard = {name: noise(name, 20) for name in (21, 22, 23)}
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    stock.start_stream(lambda result, error: answers.put((result, error)))
    for i in range(20):
        for name, frames in heard.items():
            stock.async_stream_infer(
                "vad",
                audio(frames[i]),
                request_id=str(name),
                sequence_id=name,
                sequence_start=i == 0,
                sequence_end=i == 19,
            )
    found: dict[str, list[Frame]] = {str(name): [] for name in heard}
    for _ in range(60):
        result, error = answers.get(timeout=LIMIT_S)
        assert error is None, error
        found[result.get_response().id].append(result.as_numpy("probability"))
    stock.stop_stream()
    for name, frames in heard.items():
        np.testing.assert_array_equal(found[str(name)], by_hand(client, frames))


def test_what_is_wrong_with_a_step_is_said(client: Client, stock: Any) -> None:
    frame, *_ = noise(3, 1)
    with pytest.raises(SequenceUnknown, match="its first request says sequence_start"):
        step(client, frame, 11)
    with pytest.raises(InvalidRequest, match=r"no \[sequence\]"):
        client.infer("tiny", {"x": np.zeros((1, 4), np.float32)}, sequence=SequenceStep(1, True))
    with pytest.raises(InferenceServerException) as told:
        stock.infer("vad", audio(frame), sequence_id=11)
    assert told.value.status() == "StatusCode.INVALID_ARGUMENT"
    step(client, frame, 11, True)
    state = np.zeros((1, *STATE_SHAPE), np.float32)
    with pytest.raises(InvalidRequest, match="'state' is kept by the sequence"):
        client.infer("vad", {"audio": frame, "state": state}, sequence=SequenceStep(11))
    step(client, frame, 11, False, True)


def test_a_late_step_ends_its_sequence_with_aborted(client: Client, stock: Any) -> None:
    frames = noise(4, 3)
    step(client, frames[0], 12, True)
    child = client.node_status().devices[0].pid
    os.kill(child, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded):
            step(client, frames[1], 12, timeout=0.02)
    finally:
        os.kill(child, signal.SIGCONT)
    with pytest.raises(SequenceAborted, match="begin it anew"):
        step(client, frames[2], 12)
    with pytest.raises(InferenceServerException) as told:
        stock.infer("vad", audio(frames[2]), sequence_id=12)
    assert told.value.status() == "StatusCode.ABORTED"


def test_a_device_that_is_killed_ends_its_sequences_as_lost(client: Client) -> None:
    frames = noise(5, 4)
    expected = by_hand(client, frames)
    for name in (13, 14):
        step(client, frames[0], name, True)
    child = client.node_status().devices[0].pid
    os.kill(child, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(step, client, frames[1], 13)
        stateless = pool.submit(by_hand, client, frames)
        # Unless both came and went: one that is stopped for a second is killed by the daemon.
        while client.node_status().devices[0].requests_in_flight < 2 and not running.done():
            pass
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with pytest.raises(SequenceLost, match="begin it anew") as told:
            running.result()
        assert told.value.facts["sequence_id"] == "13"
        # It is sent again, and answered when the device is back.
        np.testing.assert_array_equal(stateless.result(), expected)
    for name in (13, 14):
        with pytest.raises(SequenceLost):
            step(client, frames[1], name)
    found = [step(client, frame, 13, i == 0, i == 3) for i, frame in enumerate(frames)]
    np.testing.assert_array_equal([result["probability"] for result in found], expected)
