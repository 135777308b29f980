"""Encrypted addresses in the configuration: what it takes, and where the files are."""

from pathlib import Path

import pytest

from gpumuxd.daemon.check import describe, doubts
from gpumuxd.daemon.config import Config, parse_config
from gpumuxd.daemon.main import main
from gpumuxd.errors import ConfigError
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.rpc.listener import Listener
from gpumuxd.rpc.tls import TlsFiles
from tests.rpc.certificates import Authority

ENVIRONMENT = {"STATE_DIRECTORY": "/state", "CREDENTIALS_DIRECTORY": "/run/credentials/gpumuxd"}
FILES = "tls_certificate = '/c.pem'\ntls_key = '/c.key'"
TENANT = "[tenants.x]\ntoken = 'a token of sixteen'"


def parse(text: str) -> Config:
    return parse_config(text, ENVIRONMENT)


def test_an_encrypted_address_beside_one_of_this_machine() -> None:
    listen = f"[listen]\ntls = ['0.0.0.0:2']\n{FILES}\ntls_client_ca = 'credential:clients.pem'"
    config = parse(f"{listen}\n{TENANT}\ntls_subject = 'x'")
    assert config.tls == TlsFiles(
        Path("/c.pem"), Path("/c.key"), Path("/run/credentials/gpumuxd/clients.pem")
    )
    assert config.listeners == (
        Listener("127.0.0.1:8001"),
        Listener("0.0.0.0:2", is_encrypted=True),
    )
    assert config.node.tenants[0].tls_subject == "x"


def test_without_tenants_it_is_of_this_machine_too() -> None:
    config = parse(f"[listen]\ntcp = []\ntls = ['127.0.0.1:2']\n{FILES}")
    assert config.listeners == (Listener("127.0.0.1:2", DEFAULT_TENANT, is_encrypted=True),)
    with pytest.raises(ConfigError, match=r"\[listen\].tls: .* everyone is an admin"):
        parse(f"[listen]\ntls = ['0.0.0.0:2']\n{FILES}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls = ['127.0.0.1:1']", r"\[listen\].tls_certificate: expected a file of PEM"),
        ("tls = ['127.0.0.1:1']\ntls_certificate = '/c'", r"\[listen\].tls_key: expected a file"),
        (FILES, r"\[listen\].tls: expected addresses for the certificate, got none"),
        (f"tls = []\n{FILES}", r"\[listen\].tls: expected addresses"),
        ("tls_client_ca = '/ca'", r"\[listen\].tls: expected addresses"),
        (f"tls = ['unix:/x']\n{FILES}", r"\[listen\].tls: expected host:port, got 'unix:/x'"),
        (f"tls = ['127.0.0.1:8001']\n{FILES}", "expected each address once"),
        ("tls_key = 'c.key'", r"tls_key: expected an absolute path, or credential:NAME, got"),
        ("tls_key = 'credential:../c'", r"tls_key: expected credential:NAME, got"),
        ("tls_key = 'credential:'", r"tls_key: expected credential:NAME, got"),
        ("allow_insecure = 1", r"allow_insecure: expected true or false, got 1"),
        (f"{TENANT}\ntls_subject = 'x'", r"\[tenants.x\].tls_subject: .*\[listen\].tls_client_ca"),
        (f"{TENANT}\ntls_subject = ' '", "tls_subject: expected a name of up to 256"),
        (f"{TENANT}\ntls_subject = '{'x' * 257}'", "tls_subject: expected a name of up to 256"),
        (
            "[tenants.x]\ntls_subject = 'n'\n[tenants.y]\ntls_subject = 'n'",
            "two tenants have the same tls_subject",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(f"[listen]\n{text}")


def test_a_credential_without_systemd_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match=r"LoadCredential=c:/path, got no CREDENTIALS_DIRECTORY"):
        parse_config("[listen]\ntls_key = 'credential:c'", {"STATE_DIRECTORY": "/state"})


def test_check_config_reads_the_files_and_says_what_goes_in_clear(tmp_path: Path) -> None:
    files = Authority().write_server(tmp_path)
    text = f"[listen]\ntls = ['0.0.0.0:2']\n{FILES}\ntcp = ['0.0.0.0:1']\nallow_insecure = true"
    text = text.replace("/c.pem", str(files.certificate)).replace("/c.key", str(files.key))
    config = parse(f"{text}\n{TENANT}")
    shown = describe(config)
    assert "0.0.0.0:2 (encrypted, tenants by token)" in shown
    assert "warning: 0.0.0.0:1: tokens and tensors go over the network in clear" in shown
    assert "PRIVATE" not in shown
    files.key.chmod(0o644)
    assert any(f"it will not start: {files.key}" in doubt for doubt in doubts(config))
    assert describe(config).startswith("configuration: it will not start")
    path = tmp_path / "gpumuxd.toml"
    path.write_text(f"{text}\n{TENANT}")
    assert main(["check-config", str(path)]) == 78
