"""`gpumuxctl memory`, and the call it makes: who holds what, for admins and for tenants."""

import asyncio
import json

import pytest
from gpumuxd_client import AsyncClient, DeviceMemory, ModelMemory, TenantMemory

from gpumuxd.units import MIB
from tests.clients.test_ctl import plain_environment, run
from tests.rpc.front import CAMERA_TOKEN, Front

__all__ = ["plain_environment"]

MODEL = ModelMemory("echo", "1", "camera", 5 * MIB, 2 * MIB, MIB)
CAMERA = TenantMemory("camera", 5 * MIB, 2 * MIB, None)


async def test_an_admin_sees_all_of_a_device(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(front, "memory") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "cpu:0",
        "booked 70.0 MiB of 100.0 MiB: weights 50.0 MiB, frames 4.0 MiB (2 of 8 held), "
        "arena 16.0 MiB (3.0 MiB taken)",
        "its process holds 200.0 MiB, of which 146.0 MiB beyond weights and frames",
        "model of weights frames held at most",
        "echo/1 camera 5.0 MiB 2.0 MiB 1.0 MiB a run",
        "7 others 47.0 MiB together",
        "tenant weights frames held at most",
        "camera 5.0 MiB 2.0 MiB",
        "index 0.0 MiB 0.0 MiB 0.0 MiB allowed",
        "cpu:1",
    ]
    assert await run(front, "memory", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["totals"]["workspace_bytes"] == 146 * MIB
    assert [tenant["bytes_max"] for tenant in first["tenants"]] == [None, 0]
    assert (second["models"], second["tenants"], second["totals"]) == ([], [], None)


async def test_a_tenant_is_told_what_it_may_know(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AsyncClient(front.shared, token=CAMERA_TOKEN) as client:
        assert await client.memory() == (DeviceMemory("cpu:0", (MODEL,), (CAMERA,), None),)
    options = ("--target", front.shared, "--token", CAMERA_TOKEN)
    assert await run(front, "memory", *options) == 0
    assert "booked" not in capsys.readouterr().out


async def test_a_node_without_a_device_that_is_up_says_so(
    front: Front, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(tenant: object) -> tuple[()]:
        await asyncio.sleep(0)
        return ()

    monkeypatch.setattr(front.node, "memory", nothing)
    assert await run(front, "memory") == 0
    assert capsys.readouterr().out == "no device is up\n"
