"""Who calls: the tenant of a listener, of a bearer token, or of a client's certificate.

gRPC does not tell who is at the other end of a Unix socket, so a socket that belongs to one
tenant is a listener of its own, and its directory's permissions say who may connect. A certificate
was verified before any call comes (`tls.py`); here only its names count. It must not know how
tokens are kept or compared. It fails closed: no tenant, no call.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from gpumuxd.errors import Unauthenticated
from gpumuxd.node.api import Tenant

Metadata = tuple[tuple[str, str | bytes], ...]


class Tenants(Protocol):
    """Where tokens are looked up, in constant time, and names of certificates."""

    def by_token(self, token: str, /) -> Tenant | None:
        """The tenant with this token."""
        ...

    def by_subject(self, names: Sequence[str], /) -> Tenant | None:
        """The one tenant whose certificates have one of these names."""
        ...


Identify = Callable[[Metadata], Tenant]
"""The tenant of a call, from its metadata. Raises Unauthenticated."""

Names = Callable[[], Sequence[str]]
"""What the certificate at the other end is called; asked only where that counts."""

IdentifyPeer = Callable[[Metadata, Names], Tenant]
"""The same for any call of a listener. Raises Unauthenticated."""


class NamesUnknown(Exception):
    """Raised by `names_unknown`: it takes a certificate to tell, and nobody has seen one yet."""


def names_unknown() -> Sequence[str]:
    """The names where only the metadata of a call is there: gRPC shows no more of it then."""
    raise NamesUnknown


def of_listener(tenant: Tenant) -> IdentifyPeer:
    """Everyone on this listener is this tenant, whatever a token says."""
    return lambda metadata, names: tenant


def nobody(metadata: Metadata, names: Names) -> Tenant:
    """The tenant of an address that the configuration does not name any more."""
    raise Unauthenticated("this address is not in the daemon's configuration any more")


def by_certificate(tenants: Tenants) -> IdentifyPeer:
    """A certificate of a tenant is enough. With any other of the same authority it takes a token;
    with both, both must be the same tenant's."""
    of_token = by_token(tenants)

    def identify(metadata: Metadata, names: Names) -> Tenant:
        has_token = any(key == "authorization" for key, _ in metadata)
        told = of_token(metadata, names) if has_token else None
        presented = names()
        certified = tenants.by_subject(presented)
        if told is not None and certified is not None and told.name != certified.name:
            raise Unauthenticated("the token and the client's certificate are of two tenants")
        tenant = told or certified
        if tenant is None:
            raise Unauthenticated(
                f"no tenant has one of the names of this certificate, {sorted(presented)}, as its "
                "tls_subject, and there is no token"
            )
        return tenant

    return identify


def by_token(tenants: Tenants) -> IdentifyPeer:
    """Callers say who they are: `authorization: Bearer <token>`."""

    def identify(metadata: Metadata, names: Names) -> Tenant:
        values = [value for key, value in metadata if key == "authorization"]
        if not values:
            raise Unauthenticated("expected metadata 'authorization: Bearer <token>', got none")
        scheme, _, token = str(values[0]).partition(" ")
        if len(values) > 1 or scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("expected one metadata entry 'authorization: Bearer <token>'")
        tenant = tenants.by_token(token.strip())
        if tenant is None:
            raise Unauthenticated("the token is not known")
        return tenant

    return identify
