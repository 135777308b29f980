"""The daemon as a process: how it starts, refuses to, drains, stops and dies."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from gpumuxd_client import AsyncClient, Client
from gpumuxd_client.errors import DeadlineExceeded, DeadlineInfeasible, GpumuxdError

from gpumuxd.errors import ConfigError
from gpumuxd.wire.slices import PATIENT_NS, PROMPT_NS
from tests.daemon.harness import LIMIT_S, Daemon, Site, run_serve, watch_exit
from tests.wire.test_slices import needs_slices, slice_ns

REQUESTS = 60

X = np.arange(8, dtype=np.float32).reshape(2, 4)
BUSY_X = np.ones((1, 384), dtype=np.float32)


@pytest.fixture
def site(socket_dir: Path, repository: Path) -> Site:
    return Site(socket_dir, repository)


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[tuple[Site, Daemon]]:
    """A daemon that no test stops."""
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    site = Site(directory, repository, devices=2)
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        yield site, daemon
    shutil.rmtree(directory)


def test_it_serves_on_both_listeners(served: tuple[Site, Daemon]) -> None:
    site, _ = served
    for target in (site.target, f"127.0.0.1:{site.port}"):
        with Client(target) as client:
            assert client.server_ready()
            np.testing.assert_array_equal(client.infer("tiny", {"x": X})["y"], X * 2 + 1)


def test_every_line_of_its_log_has_a_level_and_a_time_and_nothing_is_said_twice(
    served: tuple[Site, Daemon],
) -> None:
    _, daemon = served
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    assert [line for line in lines if not {"event", "level", "timestamp"} <= line.keys()] == []
    assert (lines[0]["event"], lines[0]["pid"]) == ("starting", daemon.pid)
    assert lines[0]["devices"] == ["cpu:0", "cpu:1"]
    told = [line["event"] for line in lines]
    (serving,) = [line for line in lines if line["event"] == "serving"]
    assert (serving["is_ready"], serving["reason"]) == (True, "")
    assert (told.count("device_up"), told.count("device_started")) == (2, 0)
    loaded = sorted(line["model"] for line in lines if "loaded" in line["event"])
    assert loaded == ["busy/1", "tiny/1"]


def test_the_log_level_counts_in_the_children_too(site: Site) -> None:
    with Daemon.running(site, "--log-level", "debug") as daemon:
        daemon.wait_notified("READY=1")
        daemon.signal(signal.SIGTERM)
        assert daemon.wait_exit() == 0
        lines = [json.loads(line) for line in daemon.log.splitlines()]
    (started,) = [line for line in lines if line["event"] == "device_started"]
    assert (started["level"], started["device"]) == ("debug", "cpu:0")


def test_the_parent_is_small_and_has_no_torch(served: tuple[Site, Daemon]) -> None:
    site, daemon = served
    with Client(site.target) as client:
        client.infer("tiny", {"x": X})
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    (resident_kib,) = (int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS"))
    assert resident_kib < 120 * 1024
    assert "torch" not in Path(f"/proc/{daemon.pid}/maps").read_text()


@needs_slices
def test_who_is_waited_for_takes_the_core_from_who_computes(served: tuple[Site, Daemon]) -> None:
    site, daemon = served
    with Client(site.target) as client:
        devices = [device.pid for device in client.node_status().devices]
    threads = {pid: os.listdir(f"/proc/{pid}/task") for pid in [daemon.pid, *devices]}
    slices_ns = {pid: {slice_ns(int(each)) for each in ids} for pid, ids in threads.items()}
    assert slices_ns.pop(daemon.pid) == {PROMPT_NS}
    for pid, found_ns in slices_ns.items():
        assert slice_ns(pid) == PROMPT_NS, "the loop"
        assert found_ns == {PROMPT_NS, PATIENT_NS}, "the loop and the device thread"


def test_a_second_daemon_is_refused_and_told_who_holds_the_lock(
    served: tuple[Site, Daemon],
) -> None:
    site, daemon = served
    second = run_serve(site.config_path)
    assert second.returncode == 1
    assert f"held by the gpumuxd with pid {daemon.pid}" in second.stderr
    with Client(site.target) as client:
        assert client.server_ready()


def test_a_daemon_on_an_address_in_use_is_refused_and_told_who_holds_it(
    served: tuple[Site, Daemon], socket_dir: Path, repository: Path
) -> None:
    first, daemon = served
    other = Site(socket_dir, repository)
    text = other.config_path.read_text().replace(f":{other.port}", f":{first.port}")
    other.config_path.write_text(text)
    second = run_serve(other.config_path)
    assert second.returncode == 1
    assert f"127.0.0.1:{first.port} is in use by process {daemon.pid}" in second.stderr
    with Client(first.target) as client:
        assert client.server_ready()


@contextlib.asynccontextmanager
async def many_in_flight(site: Site) -> AsyncIterator[list["asyncio.Task[object]"]]:
    """Requests that take the device a while, all of them admitted when the block begins."""
    async with AsyncClient(site.target, retries=0) as client:
        tasks = [
            asyncio.ensure_future(client.infer("busy", {"x": BUSY_X})) for _ in range(REQUESTS)
        ]
        async with asyncio.timeout(LIMIT_S):
            while True:
                (device,) = (await client.node_status()).devices
                done = sum(task.done() for task in tasks)
                if device.requests_in_flight + done >= REQUESTS:
                    break
        assert device.requests_in_flight > 0, "the model is not busy enough for this test"
        yield tasks


async def test_sigterm_finishes_what_was_admitted_and_leaves_nothing(
    socket_dir: Path, repository: Path
) -> None:
    site = Site(socket_dir, repository, startup_models=("busy", "absent"))
    with Daemon.running(site) as daemon:
        # One model that can't be loaded keeps nobody else from being served, and is not hidden.
        assert daemon.wait_notified("READY=1")["STATUS"] == "serving, but not absent"
        async with many_in_flight(site) as tasks:
            async with AsyncClient(site.target) as client:
                assert not await client.server_ready()
                children = [device.pid for device in (await client.node_status()).devices]
            with watch_exit(children):
                daemon.signal(signal.SIGTERM)
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert [r for r in results if isinstance(r, BaseException)] == []
                assert daemon.wait_exit() == 0
        assert not site.socket_path.exists()
        assert "drain_cut_short" not in daemon.log


async def test_after_sigkill_nothing_is_left_that_blocks_a_restart_and_a_second_sigterm_is_quick(
    site: Site,
) -> None:
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        async with many_in_flight(site) as tasks:
            async with AsyncClient(site.target) as client:
                children = [device.pid for device in (await client.node_status()).devices]
            with watch_exit(children):
                daemon.signal(signal.SIGKILL)
                assert daemon.wait_exit() == -signal.SIGKILL
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(r.status == "UNAVAILABLE" for r in results if isinstance(r, GpumuxdError))
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        async with many_in_flight(site) as tasks:
            daemon.signal(signal.SIGTERM)
            await asyncio.to_thread(daemon.wait_notified, "STOPPING=1")
            daemon.signal(signal.SIGTERM)
            assert await asyncio.to_thread(daemon.wait_exit) == 0
            results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [r for r in results if isinstance(r, GpumuxdError)]
        assert errors, "everything was finished: the second signal changed nothing"
        assert {e.status for e in errors} == {"UNAVAILABLE"}
        assert "drain_cut_short" in daemon.log


def test_sigterm_while_it_starts_ends_it(site: Site) -> None:
    with Daemon.running(site) as daemon:
        daemon.wait_notified("STATUS=starting devices")
        daemon.signal(signal.SIGTERM)
        assert daemon.wait_exit() == 0
        assert '"serving"' not in daemon.log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scheduler]\nwindow = 1", "[scheduler].window: unknown key; did you mean 'window_max'"),
        ("[listen]\ntcp = ['nowhere']", "[listen].tcp: listener 'nowhere'"),
        ("nonsense", "not TOML"),
    ],
)
def test_a_bad_configuration_is_exit_code_78(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    result = run_serve(path)
    assert result.returncode == ConfigError.EXIT_CODE == 78
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_is_explained_by_what_was_measured(served: tuple[Site, Daemon]) -> None:
    site, _ = served
    with Client(site.target) as client:
        told = client.explain("busy", sizes={"batch": 1})
        assert (told.name, told.sizes, told.inputs[0].shape) == ("busy", {"batch": 1}, (1, 384))
        assert told.run_ns == sum(told.group_ns) > 0
        assert told.group_count == len(told.group_ns) > 1
        assert told.floor is not None
        assert told.floor.device_ns == max(told.group_ns)
        assert told.floor.end_node > told.floor.first_node
        assert [each.first_group for each in told.slices[1:]] == [
            each.end_group for each in told.slices[:-1]
        ]
        assert told.slices[-1].end_group == told.group_count
        assert told.reason
        largest = client.explain("busy")
        assert largest.sizes == {"batch": 2}, "the longest run that was measured"


def test_a_deadline_that_can_not_be_kept_is_refused_with_the_predicted_finish(
    served: tuple[Site, Daemon],
) -> None:
    site, _ = served
    with Client(site.target) as client:
        error = refusal(client)
        assert error.deadline_s is not None
        assert error.predicted_finish_s is not None
        assert error.predicted_finish_s > error.deadline_s > 0
        late_s = error.predicted_finish_s - error.deadline_s
        assert error.late_by_s == pytest.approx(late_s, abs=2e-6)
        assert (error.facts["model"], error.facts["version"]) == ("busy", "1")


def refusal(client: Client) -> DeadlineInfeasible:
    """Of a request that may take half as long as is expected of it. A busy machine may read one
    only when its deadline has passed, and then predicts nothing."""
    for _ in range(20):
        half_s = client.infer("busy", {"x": BUSY_X}).report.predicted_ns / 2e9
        with pytest.raises(DeadlineExceeded) as refused:
            client.infer("busy", {"x": BUSY_X}, timeout=half_s)
        error = refused.value
        if isinstance(error, DeadlineInfeasible) and error.predicted_finish_s is not None:
            return error
    raise AssertionError(f"never refused on arrival, but: {error}")
