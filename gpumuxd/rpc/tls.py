"""The certificate the daemon shows on encrypted addresses, and whose certificates it asks for.

Files are read and checked whole, before anything listens and again at SIGHUP: what can't be used
changes nothing. gRPC asks for what is in force at each handshake, so new files count for the next
connection and those that are open go on. TLS 1.2 is the least that gRPC's server speaks. It must
not know tenants. Invariant: no message and no representation holds the private key.
"""

import os
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from gpumuxd.errors import ConfigError

FILE_BYTES_MAX = 1024 * 1024
"""Of one file: a bundle of all authorities that browsers know has a fifth of it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where it is: the certificate with what it was signed by, its key, and the authorities of
    clients, where those must have a certificate too."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What was in the files, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None


class TlsIdentity:
    """What is shown and asked for from now on, from one `renew` to the next."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises ConfigError."""
        self.files = files
        self._material = read_tls(files)

    def renew(self, material: TlsMaterial) -> None:
        """The next handshake of each listener is the first with this one. Who must have a
        certificate at all was settled when it began to listen."""
        assert (material.client_ca is None) == (self.files.client_ca is None)
        self._material = material

    def credentials(self) -> grpc.ServerCredentials:
        """For one listener."""
        shown = self._material

        def changed() -> grpc.ServerCertificateConfiguration | None:
            # Called by a thread of gRPC's. None is "as before", which saves it reading them again.
            nonlocal shown
            if self._material is shown:
                return None
            shown = self._material
            return _configuration(shown)

        must_have_certificate = self.files.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(
            _configuration(shown),
            changed,  # type: ignore[arg-type]  # gRPC takes None, and says so; its types do not
            must_have_certificate,
        )


def read_tls(files: TlsFiles) -> TlsMaterial:
    """Raises ConfigError for what no handshake could be done with, and for a key that all may
    read."""
    material = TlsMaterial(
        _read(files.certificate),
        _read(files.key, is_secret=True),
        None if files.client_ca is None else _read(files.client_ca),
    )
    _check_pair(files, material)
    if files.client_ca is not None and material.client_ca is not None:
        _check_authorities(files.client_ca, material.client_ca)
    return material


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], material.client_ca
    )


def _read(path: Path, is_secret: bool = False) -> bytes:
    try:
        with path.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if is_secret and mode & stat.S_IRWXO:
        raise ConfigError(
            f"{path}: expected a private key that its owner and group alone may read, got mode "
            f"{stat.S_IMODE(mode):04o}"
        )
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: expected at most {FILE_BYTES_MAX} bytes of PEM")
    return data


def _check_pair(files: TlsFiles, material: TlsMaterial) -> None:
    """Python's ssl knows whether a key is of a certificate; gRPC says it at no handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _in_memory(material.certificate) as certificate, _in_memory(material.key) as key:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            raise ConfigError(
                f"{files.certificate} and {files.key}: expected a certificate and its private key "
                f"in PEM, got {error.reason or 'neither'}"
            ) from None
        except _Encrypted:
            raise ConfigError(f"{files.key}: expected a key without a passphrase") from None


def _check_authorities(path: Path, data: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Bundles have comments in many languages, which Python's ssl would not take.
        context.load_verify_locations(cadata=data.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{path}: expected certificates of authorities in PEM") from None


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A path for those who take no bytes: the very ones that were read, whatever the file is by
    then."""
    fd = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as opened:
            opened.write(data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
