"""Tenants: tokens, ceilings, and what a node without any is."""

import pytest

from gpumuxd.domain import PriorityClass
from gpumuxd.node.api import Tenant
from gpumuxd.node.settings import TenantSettings
from gpumuxd.node.tenants import DEFAULT_TENANT, TenantDirectory, hash_token

VOICE = Tenant("voice", priority_max=PriorityClass.REALTIME)
INDEX = Tenant("index", priority_max=PriorityClass.BEST_EFFORT)
SOCKET_ONLY = Tenant("socket_only")
DIRECTORY = TenantDirectory(
    [
        TenantSettings(VOICE, hash_token("a voice token")),
        TenantSettings(INDEX, hash_token("an index token")),
        TenantSettings(SOCKET_ONLY),
    ]
)


@pytest.mark.parametrize(
    ("token", "tenant"),
    [
        ("a voice token", VOICE),
        ("an index token", INDEX),
        ("a voice toke", None),
        ("a voice token ", None),
        ("", None),
        ("\udcff not utf-8", None),
    ],
)
def test_by_token(token: str, tenant: Tenant | None) -> None:
    assert DIRECTORY.by_token(token) == tenant


@pytest.mark.parametrize(
    ("permitted", "class_max"),
    [
        (None, PriorityClass.REALTIME),
        (frozenset({"voice", "index"}), PriorityClass.REALTIME),
        (frozenset({"index", "socket_only"}), PriorityClass.STANDARD),
        (frozenset({"index"}), PriorityClass.BEST_EFFORT),
        (frozenset({"nobody"}), PriorityClass.BEST_EFFORT),
        (frozenset(), PriorityClass.BEST_EFFORT),
    ],
)
def test_class_max(permitted: frozenset[str] | None, class_max: PriorityClass) -> None:
    assert DIRECTORY.class_max(permitted) is class_max


def test_without_tenants_everyone_is_the_default_one_and_no_token_is_known() -> None:
    directory = TenantDirectory([])
    assert directory.tenants == (DEFAULT_TENANT,)
    assert directory.by_token("") is None
    assert directory.class_max(None) is PriorityClass.REALTIME
