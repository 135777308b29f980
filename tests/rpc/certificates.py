"""Authorities and certificates that live as long as a test."""

from pathlib import Path

import grpc
import trustme

from gpumuxd.rpc.tls import TlsFiles


class Authority:
    """Signs certificates, and says what a client needs to trust them."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    @property
    def pem(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def issue(self, *names: str, common_name: str | None = None) -> trustme.LeafCert:
        return self._ca.issue_cert(*(names or ("127.0.0.1",)), common_name=common_name)

    def write_server(self, directory: Path, client_ca: "Authority | None" = None) -> TlsFiles:
        """Files of a server on loopback, whose clients need a certificate of `client_ca`."""
        files = TlsFiles(
            directory / "server.pem",
            directory / "server.key",
            None if client_ca is None else directory / "clients.pem",
        )
        issued = self.issue()
        files.certificate.write_bytes(chain_of(issued))
        write_key(files.key, issued.private_key_pem.bytes())
        if client_ca is not None and files.client_ca is not None:
            files.client_ca.write_bytes(client_ca.pem)
        return files

    def credentials(self, shown: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
        """Of a client that trusts this authority and shows a certificate, if it has one."""
        if shown is None:
            return grpc.ssl_channel_credentials(self.pem)
        return grpc.ssl_channel_credentials(
            self.pem, shown.private_key_pem.bytes(), chain_of(shown)
        )


def chain_of(issued: trustme.LeafCert) -> bytes:
    return b"".join(pem.bytes() for pem in issued.cert_chain_pems)


def write_key(path: Path, data: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(data)
