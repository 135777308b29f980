"""A model on two devices: one is killed under load, the other serves on; a device is drained."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import numpy as np
from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import DeviceLost

from tests.daemon.harness import Daemon, Site

WORKERS = 4
AFTER = 25
"""Requests of each worker after the device was killed."""

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def on_both(directory: Path, repository: Path) -> Path:
    model = directory / "repository" / "tiny"
    shutil.copytree(repository / "tiny", model)
    (model / "model.toml").write_text("replicas = 'all'\n")
    return model.parent


async def test_requests_go_on_when_one_of_two_devices_dies(
    socket_dir: Path, repository: Path
) -> None:
    models = on_both(socket_dir, repository)
    site = Site(socket_dir, models, devices=2, startup_models=("tiny",))
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        async with AsyncClient(site.target, retries=0) as client:
            (fate,) = await client.drain("cpu:0")
            assert (fate.name, fate.fate, fate.reason) == ("tiny", "served elsewhere", "cpu:1")
            states = [device.state for device in (await client.node_status()).devices]
            assert states == ["drained", "ready"]
            await client.infer("tiny", {"x": X})
            assert await client.undrain("cpu:0") == ()
            while any(entry.reason for entry in await client.index()):
                pass  # its second replica is placed again
            pid = (await client.node_status()).devices[0].pid
            killed = asyncio.Event()

            async def ask() -> list[DeviceLost]:
                lost, answered = [], 0
                while answered < AFTER:
                    try:
                        result = await client.infer("tiny", {"x": X})
                    except DeviceLost as error:  # it was in flight there
                        lost.append(error)
                    else:
                        np.testing.assert_array_equal(result["y"], X * 2 + 1)
                        answered += killed.is_set()
                        assert await client.model_ready("tiny"), "one device serves it at any time"
                return lost

            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(ask()) for _ in range(WORKERS)]
                await client.infer("tiny", {"x": X})
                os.kill(pid, signal.SIGKILL)
                killed.set()
            assert all(len(worker.result()) <= 2 for worker in workers)
