"""The clients and `gpumuxctl` at an encrypted address: a real front door, a node in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpumuxd_client import AsyncClient, Client, Tls
from gpumuxd_client.errors import Unauthenticated, Unreachable
from tritonclient.grpc import InferenceServerClient

from gpumuxd.ctl.main import main
from tests.clients.conftest import AnyClient
from tests.rpc.certificates import Authority, chain_of, write_key
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import CAMERA_TOKEN
from tests.rpc.test_tls import opened


@dataclass(frozen=True)
class Encrypted:
    """An address whose clients need a certificate, and the files of one who has the operator's."""

    target: str
    ca: Path
    certificate: Path
    key: Path

    @property
    def tls(self) -> Tls:
        return Tls(self.ca, str(self.certificate), self.key)


@pytest.fixture
async def encrypted(node: FakeNode, tmp_path: Path) -> AsyncIterator[Encrypted]:
    ours = Authority()
    shown = ours.issue("operator.example")
    paths = [tmp_path / name for name in ("ca.pem", "operator.pem", "operator.key")]
    paths[0].write_bytes(ours.pem)
    paths[1].write_bytes(chain_of(shown))
    write_key(paths[2], shown.private_key_pem.bytes())
    async with opened(node, ours.write_server(tmp_path, client_ca=ours)) as door:
        yield Encrypted(door.addresses[0], *paths)


async def test_a_certificate_is_enough(
    encrypted: Encrypted, client_class: type[Client] | type[AsyncClient]
) -> None:
    call = AnyClient(client_class(encrypted.target, tls=encrypted.tls))
    assert (await call("node_status")).version == "0.1"
    await call("close")


async def test_the_name_in_the_certificate_may_be_told(
    encrypted: Encrypted, client_class: type[Client] | type[AsyncClient]
) -> None:
    by_name = encrypted.target.replace("127.0.0.1", "localhost")
    parts = (encrypted.ca, encrypted.certificate, encrypted.key)
    wrong = AnyClient(client_class(by_name, tls=Tls(*parts), retries=0))
    with pytest.raises(Unreachable):
        await wrong("server_live")
    await wrong("close")
    told = AnyClient(client_class(by_name, tls=Tls(*parts, server_name="127.0.0.1"), retries=0))
    assert await told("server_live")
    await told("close")


async def test_without_what_it_takes_nobody_answers_or_who_asks_is_not_known(
    encrypted: Encrypted, client_class: type[Client] | type[AsyncClient], tmp_path: Path
) -> None:
    for tls in (None, Tls(encrypted.ca), Tls(None, encrypted.certificate, encrypted.key)):
        call = AnyClient(client_class(encrypted.target, tls=tls, retries=0))
        with pytest.raises(Unreachable):
            await call("server_live")
        await call("close")
    call = AnyClient(client_class(encrypted.target, tls=encrypted.tls, token=CAMERA_TOKEN))
    with pytest.raises(Unauthenticated, match="of two tenants"):
        await call("node_status")
    await call("close")


def test_files_that_are_missing_are_told_before_anything_is_sent(
    encrypted: Encrypted, client_class: type[Client] | type[AsyncClient]
) -> None:
    with pytest.raises(ValueError, match="certificate and key belong together"):
        Tls(encrypted.ca, encrypted.certificate)
    with pytest.raises(FileNotFoundError, match="absent"):
        client_class(encrypted.target, tls=Tls("/absent"))


async def test_gpumuxctl_takes_files_and_finds_them_in_the_environment(
    encrypted: Encrypted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = ["--target", encrypted.target, "--json", "status"]
    ca = ["--tls-ca", str(encrypted.ca)]
    shown = ["--tls-certificate", str(encrypted.certificate), "--tls-key", str(encrypted.key)]
    assert await asyncio.to_thread(main, [*status, *ca, *shown]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "0.1"
    assert await asyncio.to_thread(main, [*status, *ca]) == 3
    assert await asyncio.to_thread(main, [*status, *ca, *shown[:2]]) == 2
    assert await asyncio.to_thread(main, [*status, "--tls-ca", "/absent"]) == 2
    assert "/absent: No such file" in capsys.readouterr().err
    monkeypatch.setenv("GPUMUXD_TLS_CA", str(encrypted.ca))
    monkeypatch.setenv("GPUMUXD_TLS_CERTIFICATE", str(encrypted.certificate))
    monkeypatch.setenv("GPUMUXD_TLS_KEY", str(encrypted.key))
    assert await asyncio.to_thread(main, status) == 0


async def test_tritons_own_client_with_a_certificate(encrypted: Encrypted) -> None:
    def ask() -> list[str]:
        client = InferenceServerClient(
            encrypted.target,
            ssl=True,
            root_certificates=str(encrypted.ca),
            private_key=str(encrypted.key),
            certificate_chain=str(encrypted.certificate),
        )
        try:
            return [model.name for model in client.get_model_repository_index().models]
        finally:
            client.close()

    assert "identity_fp32" in await asyncio.to_thread(ask)
