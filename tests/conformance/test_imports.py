"""Our client and those of others in one process, whichever is imported first: all of them register
messages of the same protocol, and protobuf takes each name once."""

import pytest

from tests.conformance.script import run_script

MODULES = ("gpumuxd_client", "gpumuxd.rpc.server", "grpc_health.v1.health_pb2")


@pytest.mark.parametrize("other", ["tritonclient.grpc", "kserve"])
@pytest.mark.parametrize("is_first", [True, False])
def test_both_orders(other: str, is_first: bool) -> None:
    names = [other, *MODULES] if is_first else [*MODULES, other]
    source = "".join(f"import {name}\n" for name in names)
    assert run_script(source + "print('imported')") == "imported\n"
