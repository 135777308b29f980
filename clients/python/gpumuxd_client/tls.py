"""What it takes to talk to an encrypted address: whom to trust, and what to show."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import grpc

_NAME_OPTION = "grpc.ssl_target_name_override"

File = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. They are read when a client is made; what can't be read is an OSError.

    ca           the authorities that may have signed the daemon's certificate; None: those that
                 gRPC comes with
    certificate  what the client shows of itself, where the daemon asks for it, and `key`, its
                 private key
    server_name  the name in the daemon's certificate, where the target has another one
    """

    ca: File | None = None
    certificate: File | None = None
    key: File | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls: certificate and key belong together, got one of them")


def credentials_of(tls: Tls) -> grpc.ChannelCredentials:
    """For gRPC."""
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))


def options_of(tls: Tls) -> tuple[tuple[str, str], ...]:
    """What a channel needs beside them."""
    return () if tls.server_name is None else ((_NAME_OPTION, tls.server_name),)


def _read(path: File | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
