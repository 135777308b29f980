"""SIGHUP: what changes at once, what waits, what is refused. And what systemd hears."""

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpumuxd_client import AsyncClient, Client, Tls
from gpumuxd_client.errors import (
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
    Unreachable,
)

from tests.daemon.harness import Daemon, Site, free_port
from tests.rpc.certificates import Authority, chain_of, write_key

X = np.zeros((1, 4), dtype=np.float32)
BUSY_X = np.ones((1, 384), dtype=np.float32)
TOKEN = "a-token-of-sixteen-or-more"
OTHER = "another-token-just-as-long"

TENANTS = """
[tenants.operator]
socket = "{directory}/operator.sock"
admin = true
[tenants.voice]
token = "{TOKEN}"
tls_subject = "voice"
priority_max = "REALTIME"
"""

LISTEN = """
[listen]
tls = ["127.0.0.1:{port}"]
tls_certificate = "{directory}/server.pem"
tls_key = "credential:server.key"
tls_client_ca = "{directory}/clients.pem"
"""


class Reloads:
    """A daemon whose configuration is written again and again."""

    def __init__(self, site: Site, daemon: Daemon) -> None:
        self._site = site
        self._daemon = daemon
        self.base = site.config_path.read_text()

    def reload(self, text: str) -> dict[str, Any]:
        """Write it, send SIGHUP, wait until it is over; the line in the log that tells of it."""
        self._site.config_path.write_text(text)
        self._daemon.signal(signal.SIGHUP)
        begun = self._daemon.wait_notified("RELOADING=1")
        assert int(begun["MONOTONIC_USEC"]) > 0
        self.status = self._daemon.wait_notified("READY=1")["STATUS"]
        lines = [json.loads(line) for line in self._daemon.log.splitlines()]
        found: dict[str, Any] = [e for e in lines if e["event"].startswith("reload")][-1]
        return found


@pytest.fixture(scope="module")
def site(repository: Path) -> Iterator[Site]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    site = Site(directory, repository, environment={"CREDENTIALS_DIRECTORY": str(directory)})
    Authority().write_server(directory, client_ca=Authority())
    listen = LISTEN.format(directory=directory, port=free_port())
    text = site.config_path.read_text().replace("[listen]", listen)
    tenants = TENANTS.format(directory=directory, TOKEN=TOKEN)
    site.config_path.write_text(text + tenants)
    yield site
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def served(site: Site) -> Iterator[Reloads]:
    with Daemon.running(site) as daemon:
        assert int(daemon.wait_notified("EXTEND_TIMEOUT_USEC=30000000")["EXTEND_TIMEOUT_USEC"])
        daemon.wait_notified("READY=1")
        yield Reloads(site, daemon)


@pytest.fixture
def reloads(served: Reloads) -> Iterator[Reloads]:
    yield served
    served.reload(served.base)


def test_limits_tokens_and_rights_of_tenants_change_at_once(site: Site, reloads: Reloads) -> None:
    with Client(site.target, token=TOKEN, retries=0) as voice:
        voice.infer("tiny", {"x": X}, priority=1)
        told = reloads.reload(reloads.base + "bytes_in_flight_max = 1\n")
        assert told["changed"] == ["[tenants.voice].bytes_in_flight_max: not set -> 1"]
        assert told["needs_restart"] == []
        with pytest.raises(QuotaExceeded):
            voice.infer("tiny", {"x": X})
        told = reloads.reload(reloads.base.replace('priority_max = "REALTIME"', ""))
        assert len(told["changed"]) == 2
        with pytest.raises(PermissionDenied):
            voice.infer("tiny", {"x": X}, priority=1)
        told = reloads.reload(reloads.base.replace(TOKEN, OTHER))
        assert "[tenants.voice].token: (secret) -> (secret)" in told["changed"]
        assert OTHER not in json.dumps(told)
        with pytest.raises(Unauthenticated):
            voice.infer("tiny", {"x": X})
    with Client(site.target, token=OTHER, retries=0) as voice:
        voice.infer("tiny", {"x": X})


async def test_a_tenant_that_is_removed_gets_the_answers_it_waits_for(
    site: Site, reloads: Reloads
) -> None:
    without = reloads.base[: reloads.base.index("[tenants.voice]")]
    async with AsyncClient(site.target, token=TOKEN, retries=0) as voice:
        await voice.infer("tiny", {"x": X})
        tasks = [asyncio.ensure_future(voice.infer("busy", {"x": BUSY_X})) for _ in range(30)]
        async with AsyncClient(f"unix:{site.directory}/operator.sock") as operator:
            in_flight = 0
            while in_flight + sum(task.done() for task in tasks) < len(tasks):
                in_flight = (await operator.node_status()).devices[0].requests_in_flight
        told = await asyncio.to_thread(reloads.reload, without)
        assert "[tenants.voice].token: (secret) -> not set" in told["changed"]
        with pytest.raises(Unauthenticated, match="not known"):
            await voice.infer("tiny", {"x": X})
        assert len(await asyncio.gather(*tasks)) == 30


def test_a_socket_that_is_not_configured_any_more_is_nobodys(site: Site, reloads: Reloads) -> None:
    operator = f"unix:{site.directory}/operator.sock"
    with Client(operator, retries=0) as client:
        assert client.node_status().is_ready
        moved = reloads.base.replace("operator.sock", "moved.sock")
        told = reloads.reload(moved)
        assert [key.split(":")[0] for key in told["needs_restart"]] == ["[tenants.operator].socket"]
        with pytest.raises(Unauthenticated, match="not in the daemon's configuration"):
            client.node_status()
        told = reloads.reload(reloads.base)
        assert (told["changed"], told["needs_restart"]) == ([], [])
        assert client.node_status().is_ready


def test_a_file_that_can_not_be_used_changes_nothing(site: Site, reloads: Reloads) -> None:
    told = reloads.reload(reloads.base.replace(TOKEN, OTHER) + "weihgt = 2\n")
    assert (told["event"], told["level"]) == ("reload_refused", "error")
    assert "did you mean 'weight'" in told["reason"]
    assert "the last reload was refused" in reloads.status
    with Client(site.target, token=TOKEN, retries=0) as voice:
        voice.infer("tiny", {"x": X})
    told = reloads.reload(reloads.base + "[scheduler]\nwindow_max = 2\n")
    assert reloads.status == "serving"
    assert told["changed"] == []
    assert told["needs_restart"] == ["[scheduler].window_max: not set -> 2"]


def test_certificates_are_read_again_and_what_does_not_fit_together_is_refused(
    site: Site, reloads: Reloads
) -> None:
    ours = Authority()
    address = reloads.base.partition('tls = ["')[2].partition('"')[0]
    shown = ours.issue("x.example", common_name="voice")
    paths = [site.directory / name for name in ("ca.pem", "voice.pem", "voice.key")]
    paths[0].write_bytes(ours.pem)
    paths[1].write_bytes(chain_of(shown))
    write_key(paths[2], shown.private_key_pem.bytes())
    tls = Tls(*paths)

    for theirs in (None, tls):
        with Client(address, tls=theirs, retries=0) as stranger, pytest.raises(Unreachable):
            stranger.server_live()
    ours.write_server(site.directory, client_ca=ours)
    told = reloads.reload(reloads.base)
    assert (told["event"], told["changed"], told["needs_restart"]) == ("reloaded", [], [])
    with Client(address, tls=tls, retries=0) as voice:
        voice.infer("tiny", {"x": X}, priority=1)
    with Client(address, tls=Tls(paths[0]), retries=0) as nobody, pytest.raises(Unreachable):
        nobody.server_live()  # what becomes of that is in no line of the log

    write_key(site.directory / "server.key", ours.issue().private_key_pem.bytes())
    told = reloads.reload(reloads.base.replace('tls_subject = "voice"', 'tls_subject = "other"'))
    assert told["event"] == "reload_refused"
    assert "KEY_VALUES_MISMATCH" in told["reason"]
    with Client(address, tls=tls, retries=0) as voice:
        voice.infer("tiny", {"x": X}, priority=1)

    ours.write_server(site.directory, client_ca=ours)
    told = reloads.reload(reloads.base.replace('tls_subject = "voice"', 'tls_subject = "other"'))
    assert told["changed"] == ["[tenants.voice].tls_subject: 'voice' -> 'other'"]
    with Client(address, tls=tls, retries=0) as voice, pytest.raises(Unauthenticated):
        voice.infer("tiny", {"x": X})
