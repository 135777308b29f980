"""A daemon whose wall clock is set all the time keeps every deadline as if it were not.

`jumping_clock.c` is preloaded into the daemon and its children. It takes the place of the C
library's clocks, so that Python, gRPC's own code and torch all see the jumps.
"""

import json
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import grpc
import numpy as np
import pytest
from gpumuxd_client.errors import DeadlineInfeasible, error_of

from gpumuxd.rpc.generated import inference_pb2 as pb
from tests.daemon.harness import LIMIT_S, Daemon, Site
from tests.rpc.front import INFER

SOURCE = Path(__file__).with_name("jumping_clock.c")
COMPILER = shutil.which("cc")

WELL_S = 60.0
CALLS = 100
"""Each reads the clock six times for gRPC; it is set every 100 us, to one of four."""

QUEUED = 60
REALTIME, STANDARD = 1, 2

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to make the clock with")


@pytest.fixture
def jumping_site(socket_dir: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    library = socket_dir / "clock.so"
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"],
        check=True,
        timeout=LIMIT_S,
    )
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return Site(socket_dir, repository, startup_models=("busy",))


def request(priority: int = STANDARD, **parameters: int) -> bytes:
    message = pb.ModelInferRequest(model_name="busy")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 384])
    message.raw_input_contents.append(np.ones((1, 384), np.float32).tobytes())
    for name, value in {"priority": priority, **parameters}.items():
        message.parameters[name].int64_param = value
    return message.SerializeToString()


def refusal_of(call: grpc.Future) -> DeadlineInfeasible:
    """What the daemon, and not the client's own clock, ended a call with."""
    with pytest.raises(grpc.RpcError) as refused:
        call.result()
    error = refused.value
    assert isinstance(error, grpc.Call)
    metadata = [(entry.key, entry.value) for entry in error.trailing_metadata() or ()]
    ours = error_of(error.code().name, error.details(), metadata)
    assert isinstance(ours, DeadlineInfeasible), ours
    return ours


def test_deadlines_are_kept_while_the_wall_clock_is_set_by_hours(jumping_site: Site) -> None:
    with Daemon.running(jumping_site, "--log-level", "debug") as daemon:
        daemon.wait_notified("READY=1")
        assert hours_seen(daemon.log) > 1, "the clock was not set"
        with grpc.insecure_channel(jumping_site.target) as channel:
            infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
            for _ in range(CALLS):
                answer = pb.ModelInferResponse.FromString(infer(request(), timeout=WELL_S))
            infer(request(timeout=60 * 10**6))
            run_us = answer.parameters["predicted_ns"].int64_param // 1000
            assert run_us > 0

            refused = refusal_of(infer.future(request(timeout=run_us // 2)))
            assert refused.deadline_s == pytest.approx(run_us / 2e6, abs=1e-6)

            # The queue goes first, and takes longer than this one may. gRPC rounds its deadline.
            queue = [infer.future(request(REALTIME), timeout=WELL_S) for _ in range(QUEUED)]
            half_s = run_us / 1e6 * QUEUED / 2
            refused = refusal_of(infer.future(request(), timeout=half_s))
            assert half_s / 2 < (refused.deadline_s or 0) <= half_s * 1.01 + 0.001
            for each in queue:
                each.result()


def hours_seen(log: str) -> float:
    """Between the first and the last time that a line has."""
    times = [datetime.fromisoformat(json.loads(line)["timestamp"]) for line in log.splitlines()]
    return (max(times) - min(times)).total_seconds() / 3600
