"""Who may ask: the tenants of the configuration, and the one a token belongs to.

Tokens are kept as SHA-256 only, and looking one up takes the same time whichever tenant it
belongs to, or none. It must not know transports: a socket's tenant is known to its listener.
"""

import hashlib
import hmac
from collections.abc import Sequence

from gpumuxd.domain import PriorityClass
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.api import Tenant
from gpumuxd.node.settings import TenantSettings

DEFAULT_TENANT = Tenant(
    name="default", priority_default=2, priority_max=PriorityClass.REALTIME, is_admin=True
)
"""Who everybody is on a node that configures no tenants."""


def hash_token(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class TenantDirectory:
    """All tenants of the node; without any in the configuration, the default one."""

    def __init__(self, settings: Sequence[TenantSettings]) -> None:
        self._settings: tuple[TenantSettings, ...] = ()
        self._by_name: dict[str, TenantSettings] = {}
        self.change(settings)

    def change(self, settings: Sequence[TenantSettings]) -> Sequence[Tenant]:
        """From now on these are the tenants. Returns those that are new or differ. What a tenant
        has in flight is counted by its name and ends as it was admitted, also if it is gone."""
        before = self.tenants
        self._settings = tuple(settings) or (TenantSettings(DEFAULT_TENANT),)
        self._by_name = {entry.tenant.name: entry for entry in self._settings}
        assert len(self._by_name) == len(self._settings), "tenant names are unique"
        return tuple(tenant for tenant in self.tenants if tenant not in before)

    @property
    def tenants(self) -> Sequence[Tenant]:
        return tuple(entry.tenant for entry in self._settings)

    def settings_of(self, tenant: Tenant) -> TenantSettings:
        """Limits of a tenant; one that is in no configuration has the default ones."""
        return self._by_name.get(tenant.name) or TenantSettings(tenant)

    def by_token(self, token: str) -> Tenant | None:
        """The tenant that this bearer token belongs to. Compares with every token, always."""
        presented = hash_token(token)
        found: Tenant | None = None
        for entry in self._settings:
            if entry.token_sha256 is not None and hmac.compare_digest(
                entry.token_sha256, presented
            ):
                found = entry.tenant
        return found

    def by_subject(self, names: Sequence[str]) -> Tenant | None:
        """The tenant whose `tls_subject` is among the names of a certificate. None for one that
        has the names of two."""
        found = [entry.tenant for entry in self._settings if entry.tls_subject in names]
        return found[0] if len(found) == 1 else None

    def class_max_of(self, manifest: Manifest) -> PriorityClass:
        """The highest class that any request for a model with this manifest may have."""
        permitted = manifest.tenants
        class_max = self.class_max(None if permitted is None else frozenset(permitted))
        return class_max if manifest.priority_max is None else min(class_max, manifest.priority_max)

    def class_max(self, permitted: frozenset[str] | None) -> PriorityClass:
        """The highest class that any of these tenants may ask for (None: all tenants)."""
        ceilings = [
            entry.tenant.priority_max
            for entry in self._settings
            if permitted is None or entry.tenant.name in permitted
        ]
        return max(ceilings, default=PriorityClass.BEST_EFFORT)
