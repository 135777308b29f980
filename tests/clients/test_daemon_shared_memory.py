"""Stock `tritonclient.utils.shared_memory` with a running daemon."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as triton_shm

from tests.daemon.harness import Daemon, Site
from tests.node.artifacts import export_tiny
from tests.node.shm import Objects, objects, open_objects

X: NDArray[np.float32] = np.arange(8, dtype=np.float32).reshape(2, 4)
TOKEN = "the token of the camera"
TABLES = f"""
[shared_memory]
allow = true
[tenants.camera]
token = "{TOKEN}"
[tenants.other]
token = "{TOKEN}, and another"
"""
CAMERA = {"authorization": f"Bearer {TOKEN}"}
OTHER = {"authorization": f"Bearer {TOKEN}, and another"}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, Daemon]]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    repository = directory / "repository"
    export_tiny(repository / "tiny" / "1" / "model.pt2")
    site = Site(directory, repository, startup_models=("tiny",), more_tables=TABLES)
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        yield site, daemon
    shutil.rmtree(directory)


@pytest.fixture
def daemon(served: tuple[Site, Daemon]) -> Daemon:
    return served[1]


@pytest.fixture
def client(served: tuple[Site, Daemon]) -> Iterator[Any]:
    with triton.InferenceServerClient(served[0].target) as opened:
        yield opened
        opened.unregister_system_shared_memory(headers=CAMERA)


@pytest.fixture
def shm() -> Iterator[Objects]:
    with objects() as made:
        yield made


def wait_closed(daemon: Daemon) -> None:
    """Returns when the daemon has nothing open; a thread of it closes."""
    while open_objects(daemon.pid):
        os.sched_yield()


def refused(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return f"{caught.value.status()}: {caught.value.message()}"


def infer(client: Any, region: str, offset: int = 0, outputs: Any = None) -> Any:
    given = triton.InferInput("x", list(X.shape), "FP32")
    given.set_shared_memory(region, X.nbytes, offset)
    return client.infer("tiny", [given], outputs=outputs, headers=CAMERA, client_timeout=30)


def to_region(name: str, region: str, size_bytes: int, offset: int = 0) -> Any:
    output = triton.InferRequestedOutput(name)
    output.set_shared_memory(region, size_bytes, offset)
    return output


def test_the_clients_own_tools_give_inputs_and_take_outputs(
    client: Any, daemon: Daemon, shm: Objects
) -> None:
    assert "system_shared_memory" in client.get_server_metadata(headers=CAMERA).extensions
    key = shm.path().name
    handle = triton_shm.create_shared_memory_region("r", key, 3 * X.nbytes)
    try:
        triton_shm.set_shared_memory_region(handle, [X])
        client.register_system_shared_memory("r", key, 3 * X.nbytes, headers=CAMERA)
        status = client.get_system_shared_memory_status(headers=CAMERA).regions["r"]
        assert (status.key, status.offset, status.byte_size) == (key, 0, 3 * X.nbytes)

        result = infer(client, "r", outputs=[to_region("y", "r", X.nbytes, X.nbytes)])
        told = result.get_output("y").parameters
        assert told["shared_memory_region"].string_param == "r"
        assert told["shared_memory_byte_size"].int64_param == X.nbytes
        assert told["shared_memory_offset"].int64_param == X.nbytes
        # One entry for each output, also an empty one: C++ clients count on it.
        assert list(result.get_response().raw_output_contents) == [b""]
        y = triton_shm.get_contents_as_numpy(handle, np.float32, X.shape, X.nbytes)
        np.testing.assert_array_equal(y, X * 2 + 1)
        del y

        # The output of one is the input of the next, and lies over it; the other comes as ever.
        place = to_region("y", "r", 2 * X.nbytes, X.nbytes)
        result = infer(client, "r", X.nbytes, [place, triton.InferRequestedOutput("n")])
        assert result.get_output("y").parameters["shared_memory_byte_size"].int64_param == X.nbytes
        np.testing.assert_array_equal(result.as_numpy("n"), (X * 2 + 1).sum(axis=1))
        y = triton_shm.get_contents_as_numpy(handle, np.float32, X.shape, X.nbytes)
        np.testing.assert_array_equal(y, X * 4 + 3)
        del y

        client.unregister_system_shared_memory("r", headers=CAMERA)
        assert not client.get_system_shared_memory_status(headers=CAMERA).regions
    finally:
        triton_shm.destroy_shared_memory_region(handle)
    wait_closed(daemon)


def test_an_object_that_is_unlinked_is_there_until_it_is_unregistered(
    client: Any, daemon: Daemon, shm: Objects
) -> None:
    path = shm.make(X.tobytes())
    client.register_system_shared_memory("r", path.name, X.nbytes, headers=CAMERA)
    path.unlink()
    for _ in range(2):
        np.testing.assert_array_equal(infer(client, "r").as_numpy("y"), X * 2 + 1)
    client.unregister_system_shared_memory("r", headers=CAMERA)
    assert "NOT_FOUND" in refused(infer, client, "r")
    wait_closed(daemon)


def test_an_object_that_was_made_smaller_is_said_to_be(client: Any, shm: Objects) -> None:
    path = shm.make(X.tobytes())
    client.register_system_shared_memory("r", path.name, X.nbytes, headers=CAMERA)
    os.truncate(path, X.nbytes - 4)
    told = refused(infer, client, "r")
    assert "INVALID_ARGUMENT" in told
    assert "the object ends after 28" in told
    os.truncate(path, X.nbytes)
    assert infer(client, "r") is not None


def test_a_tenant_reaches_its_own_regions_alone(client: Any, shm: Objects) -> None:
    path = shm.make(X.tobytes())
    client.register_system_shared_memory("r", path.name, X.nbytes, headers=OTHER)
    assert "NOT_FOUND" in refused(infer, client, "r")
    assert not client.get_system_shared_memory_status(headers=CAMERA).regions
    client.unregister_system_shared_memory(headers=CAMERA)
    assert list(client.get_system_shared_memory_status(headers=OTHER).regions) == ["r"]
    client.unregister_system_shared_memory(headers=OTHER)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (("r", X.nbytes, 4), "the request names 32 bytes at 4"),
        (("r", X.nbytes - 4, 0), "got 28"),
        (("r", X.nbytes, 2**63 - 1), "32 bytes at 9223372036854775807"),
        (("r", 2**63 - 1, 2**63 - 1), "got 9223372036854775807"),
        (("r", -1, 0), "-1"),
        (("nobody", X.nbytes, 0), "'nobody'"),
    ],
)
def test_places_that_can_not_be(
    client: Any, shm: Objects, parameters: tuple[str, int, int], told: str
) -> None:
    path = shm.make(X.tobytes())
    client.register_system_shared_memory("r", path.name, X.nbytes, headers=CAMERA)
    given = triton.InferInput("x", list(X.shape), "FP32")
    given.set_shared_memory(*parameters)
    assert told in refused(client.infer, "tiny", [given], headers=CAMERA)
    assert infer(client, "r") is not None


def test_cuda_and_more_regions_than_there_may_be(client: Any, daemon: Daemon, shm: Objects) -> None:
    told = refused(client.unregister_cuda_shared_memory, headers=CAMERA)
    assert "UNIMPLEMENTED" in told
    path = shm.make(X.tobytes())
    with ThreadPoolExecutor(8) as pool:
        register = client.register_system_shared_memory
        calls = [
            pool.submit(register, f"r{number}", path.name, X.nbytes, headers=CAMERA)
            for number in range(260)
        ]
        failed = [str(call.exception()) for call in calls if call.exception() is not None]
    assert len(failed) == 4
    assert all("regions_max allows 256" in text for text in failed)
    assert len(open_objects(daemon.pid)) == 256
    np.testing.assert_array_equal(infer(client, "r5").as_numpy("y"), X * 2 + 1)
    client.unregister_system_shared_memory(headers=CAMERA)
    wait_closed(daemon)


def test_a_storm_of_clients_that_pull_the_rug(
    served: tuple[Site, Daemon], client: Any, shm: Objects
) -> None:
    """Objects are truncated, unlinked, unregistered and registered anew under requests. Each ends
    well or says why not, the daemon and its device live, and its files come back."""
    site, daemon = served
    path = shm.make(X.tobytes())
    name = path.name
    client.register_system_shared_memory("r", name, X.nbytes, headers=CAMERA)
    is_over = threading.Event()

    def pull() -> None:
        with triton.InferenceServerClient(site.target) as own:
            while not is_over.is_set():
                os.truncate(path, 8)
                os.truncate(path, X.nbytes)
                path.unlink()
                path.write_bytes(X.tobytes())
                own.unregister_system_shared_memory("r", headers=CAMERA)
                own.register_system_shared_memory("r", name, X.nbytes, headers=CAMERA)

    def ask() -> list[str]:
        ends = []
        with triton.InferenceServerClient(site.target) as own:
            for _ in range(100):
                try:
                    infer(own, "r", outputs=[to_region("y", "r", X.nbytes)])
                    ends.append("OK")
                except InferenceServerException as error:
                    ends.append(error.status())
        return ends

    puller = threading.Thread(target=pull)
    puller.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            ends = [end for asked in [pool.submit(ask) for _ in range(3)] for end in asked.result()]
    finally:
        is_over.set()
        puller.join()
    assert set(ends) <= {"OK", "StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND"}
    assert len(ends) == 300
    client.unregister_system_shared_memory(headers=CAMERA)
    wait_closed(daemon)
    assert daemon.process.poll() is None
    assert "device_lost" not in daemon.log
    given = triton.InferInput("x", list(X.shape), "FP32")
    given.set_data_from_numpy(X)
    result = client.infer("tiny", [given], headers=CAMERA)
    np.testing.assert_array_equal(result.as_numpy("y"), X * 2 + 1)
