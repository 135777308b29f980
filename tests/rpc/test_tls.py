"""Encrypted addresses: who gets through a handshake, who a certificate is, what files are taken."""

import asyncio
import datetime
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from gpumuxd.errors import ConfigError
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.listener import Listener
from gpumuxd.rpc.server import FrontDoor
from gpumuxd.rpc.tls import TlsFiles, read_tls
from tests.rpc.certificates import Authority, chain_of, write_key
from tests.rpc.fake_node import ADMIN, CAMERA, FakeNode, FakeTenants, fake_node
from tests.rpc.front import (
    CAMERA_TOKEN,
    INFER,
    MESSAGE_BYTES_MAX,
    WAIT_S,
    ask,
    good_request,
    refusal,
)

BEARER = (("authorization", f"Bearer {CAMERA_TOKEN}"),)
LIVE = "/inference.GRPCInferenceService/ServerLive"


@pytest.fixture(scope="module")
def ours() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def foreign() -> Authority:
    return Authority()


@asynccontextmanager
async def opened(node: FakeNode, files: TlsFiles) -> AsyncIterator[FrontDoor]:
    """One encrypted address, with a tenant by token and two by certificate."""
    tenants = FakeTenants({CAMERA_TOKEN: CAMERA}, {"camera": CAMERA, "operator.example": ADMIN})
    listeners = (Listener("127.0.0.1:0", is_encrypted=True),)
    door = FrontDoor(node, listeners, tenants, MESSAGE_BYTES_MAX, tls=files)
    await door.start()
    try:
        yield door
    finally:
        await door.stop(0)


@pytest.fixture
def files(ours: Authority, tmp_path: Path) -> TlsFiles:
    return ours.write_server(tmp_path)


@pytest.fixture
def mutual(ours: Authority, tmp_path: Path) -> TlsFiles:
    return ours.write_server(tmp_path, client_ca=ours)


async def status(
    door: FrontDoor,
    credentials: grpc.ChannelCredentials | None,
    metadata: tuple[tuple[str, str], ...] = (),
) -> tuple[str, str]:
    """What becomes of an inference on a connection of its own: "OK", or status and text."""
    (target,) = door.addresses
    options = [("grpc.enable_retries", 0)]
    channel = (
        grpc.aio.insecure_channel(target, options)
        if credentials is None
        else grpc.aio.secure_channel(target, credentials, options)
    )
    async with channel:
        try:
            await ask(channel, INFER, good_request(), pb.ModelInferResponse, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


async def test_a_client_that_trusts_the_authority_is_served_by_its_token(
    ours: Authority, files: TlsFiles
) -> None:
    node = fake_node()
    async with opened(node, files) as door:
        assert await status(door, ours.credentials(), BEARER) == ("OK", "")
        assert [call.tenant for call in node.calls] == [CAMERA]
        # Not asked for, a certificate is nobody's name.
        code, text = await status(door, ours.credentials(ours.issue(common_name="camera")))
        assert (code, "Bearer" in text) == ("UNAUTHENTICATED", True)


async def test_nobody_else_gets_a_connection(
    ours: Authority, foreign: Authority, files: TlsFiles
) -> None:
    node = fake_node()
    async with opened(node, files) as door:
        code, text = await status(door, foreign.credentials(), BEARER)
        assert (code, "CERTIFICATE_VERIFY_FAILED" in text) == ("UNAVAILABLE", True)
        assert (await status(door, None, BEARER))[0] == "UNAVAILABLE", "in clear"
        assert (await status(door, ours.credentials(), BEARER))[0] == "OK"
    assert len(node.calls) == 1


async def test_a_certificate_that_has_expired_is_noticed(ours: Authority, files: TlsFiles) -> None:
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    ca = trustme.CA()
    late = ca.issue_cert("127.0.0.1", not_after=past)
    files.certificate.write_bytes(chain_of(late))
    write_key(files.key, late.private_key_pem.bytes())
    async with opened(fake_node(), files) as door:
        trusting = grpc.ssl_channel_credentials(ca.cert_pem.bytes())
        code, text = await status(door, trusting, BEARER)
        assert (code, "certificate has expired" in text) == ("UNAVAILABLE", True)


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [
        (ssl.TLSVersion.TLSv1, False),
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
async def test_nothing_older_than_tls_1_2_is_spoken(
    ours: Authority, files: TlsFiles, version: ssl.TLSVersion, is_taken: bool
) -> None:
    context = ssl.create_default_context(cadata=ours.pem.decode())
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.maximum_version = version
        context.minimum_version = version
    context.set_alpn_protocols(["h2"])

    def shake(port: int) -> str | None:
        with (
            socket.create_connection(("127.0.0.1", port), WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            return encrypted.version()

    async with opened(fake_node(), files) as door:
        port = int(door.addresses[0].rpartition(":")[2])
        if is_taken:
            told = await asyncio.to_thread(shake, port)
            assert told == version.name.replace("_", ".")
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(shake, port)


# Certificates of clients


async def test_where_clients_need_a_certificate_only_those_of_its_authority_connect(
    ours: Authority, foreign: Authority, mutual: TlsFiles
) -> None:
    node = fake_node()
    async with opened(node, mutual) as door:
        for shown in (None, foreign.issue(common_name="camera")):
            assert (await status(door, ours.credentials(shown), BEARER))[0] == "UNAVAILABLE"
        past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        late = ours._ca.issue_cert("x.example", common_name="camera", not_after=past)
        assert (await status(door, ours.credentials(late)))[0] == "UNAVAILABLE"
    assert node.calls == []


@pytest.mark.parametrize(
    ("names", "common_name", "metadata", "expected"),
    [
        (("x.example",), "camera", (), CAMERA),
        (("operator.example", "y.example"), None, (), ADMIN),
        (("x.example",), "camera", BEARER, CAMERA),
        (("x.example",), "stranger", BEARER, CAMERA),
        # Refused: nobody's name, a name of two, a token of another, a token that is none.
        (("x.example",), "stranger", (), "tls_subject"),
        (("camera.example",), None, (), "'camera.example'"),
        (("operator.example",), "camera", (), "tls_subject"),
        (("operator.example",), None, BEARER, "of two tenants"),
        (("x.example",), "camera", (("authorization", "Bearer wrong"),), "not known"),
    ],
)
async def test_who_a_certificate_is(
    ours: Authority,
    mutual: TlsFiles,
    names: tuple[str, ...],
    common_name: str | None,
    metadata: tuple[tuple[str, str], ...],
    expected: object,
) -> None:
    node = fake_node()
    async with opened(node, mutual) as door:
        shown = ours.credentials(ours.issue(*names, common_name=common_name))
        code, text = await status(door, shown, metadata)
    if isinstance(expected, str):
        assert (code, expected in text, node.calls) == ("UNAUTHENTICATED", True, [])
    else:
        assert (code, [call.tenant for call in node.calls]) == ("OK", [expected])


async def test_the_right_certificate_for_the_wrong_model_is_told_that_there_is_none(
    ours: Authority, mutual: TlsFiles
) -> None:
    async with opened(fake_node(), mutual) as door:
        (target,) = door.addresses
        shown = ours.credentials(ours.issue(common_name="camera"))
        async with grpc.aio.secure_channel(target, shown) as channel:
            code, _, _ = await refusal(channel, INFER, good_request(model_name="nobody"))
            assert code == "NOT_FOUND"
            path = "/gpumuxd.v1.Control/NodeStatus"
            assert (await refusal(channel, path, b""))[0] == "PERMISSION_DENIED"
            await ask(channel, LIVE, b"", pb.ServerLiveResponse)


async def test_a_certificate_counts_on_encrypted_addresses_alone(
    ours: Authority, mutual: TlsFiles
) -> None:
    tenants = FakeTenants({CAMERA_TOKEN: CAMERA}, {"camera": CAMERA})
    listeners = (Listener("127.0.0.1:0"), Listener("127.0.0.1:0", is_encrypted=True))
    door = FrontDoor(fake_node(), listeners[:1], tenants, MESSAGE_BYTES_MAX, tls=mutual)
    await door.start()
    try:
        assert (await status(door, None))[0] == "UNAUTHENTICATED"
        assert (await status(door, None, BEARER))[0] == "OK"
        assert door.tls_files is None, "nothing is encrypted"
    finally:
        await door.stop(0)


@pytest.mark.parametrize(
    ("common_name", "expected"), [("camera", "OK"), ("stranger", "UNAUTHENTICATED")]
)
async def test_streams_are_of_whoever_the_certificate_is(
    ours: Authority, mutual: TlsFiles, common_name: str, expected: str
) -> None:
    node = fake_node()
    async with opened(node, mutual) as door:
        shown = ours.credentials(ours.issue("x.example", common_name=common_name))
        async with grpc.aio.secure_channel(door.addresses[0], shown) as channel:
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
            method = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            call = method(iter([good_request().SerializeToString()]), timeout=WAIT_S)
            try:
                answers = [data async for data in call]
            except grpc.aio.AioRpcError:
                answers = []
            assert (await call.code()).name == expected
    tenants = [each.tenant for each in node.calls]
    assert (len(answers), tenants) == ((1, [CAMERA]) if expected == "OK" else (0, []))


# Files


async def test_new_files_count_for_the_next_connection_and_open_ones_go_on(
    ours: Authority, foreign: Authority, files: TlsFiles
) -> None:
    async with opened(fake_node(), files) as door:
        (target,) = door.addresses
        async with grpc.aio.secure_channel(target, ours.credentials()) as channel:
            await ask(channel, LIVE, b"", pb.ServerLiveResponse)
            foreign.write_server(files.key.parent)
            assert (await status(door, ours.credentials(), BEARER))[0] == "OK", "not told yet"
            door.renew_tls(read_tls(files))
            assert (await status(door, ours.credentials(), BEARER))[0] == "UNAVAILABLE"
            for _ in range(2):
                assert (await status(door, foreign.credentials(), BEARER))[0] == "OK"
            await ask(channel, LIVE, b"", pb.ServerLiveResponse)


async def test_new_authorities_of_clients_count_for_the_next_connection(
    ours: Authority, foreign: Authority, mutual: TlsFiles
) -> None:
    assert mutual.client_ca is not None
    async with opened(fake_node(), mutual) as door:
        old, new = (a.issue("x.example", common_name="camera") for a in (ours, foreign))
        assert (await status(door, ours.credentials(old)))[0] == "OK"
        mutual.client_ca.write_bytes(foreign.pem)
        door.renew_tls(read_tls(mutual))
        assert (await status(door, ours.credentials(old)))[0] == "UNAVAILABLE"
        assert (await status(door, ours.credentials(new)))[0] == "OK"


def test_a_key_that_all_may_read_is_refused_and_one_of_a_group_is_not(files: TlsFiles) -> None:
    files.key.chmod(0o640)
    assert b"PRIVATE KEY" in read_tls(files).key
    files.key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"server\.key: .* owner and group .* got mode 0644"):
        read_tls(files)


def test_a_key_is_shown_nowhere(files: TlsFiles) -> None:
    assert "PRIVATE" not in repr(read_tls(files))
    assert "BEGIN CERTIFICATE" in repr(read_tls(files)), "what may be shown is"


def test_a_key_of_another_certificate_is_refused(ours: Authority, files: TlsFiles) -> None:
    write_key(files.key, ours.issue().private_key_pem.bytes())
    with pytest.raises(ConfigError, match=r"private key in PEM, got KEY_VALUES_MISMATCH"):
        read_tls(files)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(
    files: TlsFiles,
) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    files.key.write_bytes(encrypted)
    with pytest.raises(ConfigError, match="without a passphrase"):
        read_tls(files)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\xff\xfe", b"x" * (1024 * 1024 + 1)])
@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
def test_what_is_no_pem_is_refused_by_name(mutual: TlsFiles, which: str, data: bytes) -> None:
    path: Path = getattr(mutual, which)
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=path.name):
        read_tls(mutual)


def test_what_is_not_there_is_told_before_anything_listens(files: TlsFiles) -> None:
    files.certificate.unlink()
    listeners = (Listener("127.0.0.1:0", is_encrypted=True),)
    door = FrontDoor(fake_node(), listeners, FakeTenants(), MESSAGE_BYTES_MAX, tls=files)
    with pytest.raises(ConfigError, match=r"server\.pem: No such file"):
        door.claim()
