"""Who calls: the tenant of a listener, or the tenant of a bearer token.

gRPC does not tell who is at the other end of a Unix socket, so a socket that belongs to one
tenant is a listener of its own, and its directory's permissions say who may connect. It must not
know how tokens are kept or compared. It fails closed: no tenant, no call.
"""

from collections.abc import Callable
from typing import Protocol

from gpumuxd.errors import Unauthenticated
from gpumuxd.node.api import Tenant

Metadata = tuple[tuple[str, str | bytes], ...]


class Tenants(Protocol):
    """Where tokens are looked up, in constant time."""

    def by_token(self, token: str, /) -> Tenant | None:
        """The tenant with this token."""
        ...


Identify = Callable[[Metadata], Tenant]
"""The tenant of a call, from its metadata. Raises Unauthenticated."""


def of_listener(tenant: Tenant) -> Identify:
    """Everyone on this listener is this tenant, whatever a token says."""
    return lambda metadata: tenant


def nobody(metadata: Metadata) -> Tenant:
    """The tenant of an address that the configuration does not name any more."""
    raise Unauthenticated("this address is not in the daemon's configuration any more")


def by_token(tenants: Tenants) -> Identify:
    """Callers say who they are: `authorization: Bearer <token>`."""

    def identify(metadata: Metadata) -> Tenant:
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
