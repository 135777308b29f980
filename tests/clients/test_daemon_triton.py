"""Stock `tritonclient[grpc]` and `gpumuxctl` against a running daemon with real models."""

import json
import queue
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gpumuxd.ctl.main import main as gpumuxctl
from tests.daemon.harness import Daemon, Site, run_serve
from tests.models.archives import archive, good_graph, members
from tests.node.artifacts import export_busy, export_tiny

X: NDArray[np.float32] = np.arange(8, dtype=np.float32).reshape(2, 4)


def publish_what_is_refused(repository: Path) -> None:
    """`newer` is of a schema that no torch writes, `altered` is not what its checksum says."""
    newer = repository / "newer" / "1" / "model.pt2"
    graph = {**good_graph(), "schema_version": {"major": 99, "minor": 1}}
    newer.parent.mkdir(parents=True)
    newer.write_bytes(archive(members({**graph, "torch_version": "4.2.0"})).getvalue())
    altered = repository / "altered" / "1" / "model.pt2"
    altered.parent.mkdir(parents=True)
    altered.write_bytes(archive(members()).getvalue())
    altered.with_name("model.pt2.sha256").write_text(f"{'0' * 64}  model.pt2\n")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, Daemon]]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    repository = directory / "repository"
    export_tiny(repository / "tiny" / "1" / "model.pt2")
    export_busy(repository / "busy" / "1" / "model.pt2")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.pt2").write_bytes(b"not an archive")
    publish_what_is_refused(repository)
    site = Site(directory, repository)
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        yield site, daemon
    shutil.rmtree(directory)


@pytest.fixture
def client(served: tuple[Site, Daemon]) -> Iterator[Any]:
    site, _ = served
    with triton.InferenceServerClient(site.target) as opened:
        yield opened


def tensor(array: NDArray[Any], name: str = "x") -> Any:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def check_serves(client: Any) -> None:
    result = client.infer("tiny", [tensor(X)], request_id="7", client_timeout=30)
    np.testing.assert_array_equal(result.as_numpy("y"), X * 2 + 1)
    np.testing.assert_array_equal(result.as_numpy("n"), X.sum(axis=1))
    response = result.get_response()
    assert (response.id, response.model_version) == ("7", "1")
    assert response.parameters["compute_ns"].int64_param > 0


def test_metadata_and_config_describe_what_runs(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata().name == "gpumuxd"
    metadata = client.get_model_metadata("tiny", as_json=True)
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]
    assert [output["name"] for output in metadata["outputs"]] == ["y", "n"]
    config = client.get_model_config("tiny", as_json=True)["config"]
    assert config["max_batch_size"] == 4
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}]
    assert int(config["parameters"]["group_count"]["string_value"]) >= 1


def test_an_inference_with_priority_timeout_and_one_output(client: Any) -> None:
    check_serves(client)
    for rows in (1, 4):
        x = np.ones((rows, 4), np.float32)
        result = client.infer(
            "tiny",
            [tensor(x)],
            outputs=[triton.InferRequestedOutput("n")],
            priority=1,
            timeout=30_000_000,
        )
        np.testing.assert_array_equal(result.as_numpy("n"), np.full(rows, 4, np.float32))
        assert result.as_numpy("y") is None


def statistics_of(client: Any, name: str) -> Any:
    (found,) = client.get_inference_statistics(name).model_stats
    return found


def test_statistics_count_every_request_once(client: Any) -> None:
    before = statistics_of(client, "tiny")
    for _ in range(3):
        client.infer("tiny", [tensor(X)], client_timeout=30)  # two rows
    with pytest.raises(InferenceServerException):
        client.infer("tiny", [tensor(X)], outputs=[triton.InferRequestedOutput("z")])
    after = statistics_of(client, "tiny")
    assert (after.name, after.version) == ("tiny", "1")
    assert after.inference_count - before.inference_count == 6
    assert after.execution_count - before.execution_count == 3
    stats, stats_before = after.inference_stats, before.inference_stats
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        duration, earlier = getattr(stats, name), getattr(stats_before, name)
        assert (name, duration.count - earlier.count) == (name, 3)
        assert duration.ns > earlier.ns
    assert stats.fail.count - stats_before.fail.count == 1
    batches = {batch.batch_size: batch.compute_infer.count for batch in after.batch_stats}
    assert sum(batches.values()) == after.execution_count
    assert 2 in batches
    assert after.last_inference >= before.last_inference
    (memory,) = after.memory_usage
    assert (memory.type, memory.byte_size > 0) == ("CPU", True)
    assert {m.name for m in client.get_inference_statistics().model_stats} >= {"tiny", "busy"}


def test_a_stream_of_inferences(client: Any) -> None:
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    for number in range(20):
        client.async_stream_infer("tiny", [tensor(X + number)], request_id=str(number))
    client.async_stream_infer("nobody", [tensor(X)])
    client.stop_stream()
    for number in range(20):
        result, error = heard.get_nowait()
        assert (error, result.get_response().id) == (None, str(number))
        np.testing.assert_array_equal(result.as_numpy("y"), (X + number) * 2 + 1)
    _, error = heard.get_nowait()
    assert "nobody" in error.message()


def test_the_log_is_switched_while_it_runs(served: tuple[Site, Daemon], client: Any) -> None:
    def unloads_logged() -> int:
        client.unload_model("busy")
        client.load_model("busy")
        return served[1].log.count('"model_unloaded"')

    before = unloads_logged()
    client.update_log_settings({"log_info": False})
    assert unloads_logged() == before
    client.update_log_settings({"log_info": None})
    assert unloads_logged() == before + 1


def test_load_unload_and_the_index_agree(client: Any) -> None:
    def states() -> dict[str, str]:
        return {m.name: m.state for m in client.get_model_repository_index().models}

    assert states()["busy"] == "READY"
    client.unload_model("busy")
    assert states()["busy"] == "UNAVAILABLE"
    assert not client.is_model_ready("busy")
    with pytest.raises(InferenceServerException) as refused:
        client.infer("busy", [tensor(np.ones((1, 384), np.float32))])
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    client.load_model("busy")
    assert states()["busy"] == "READY"
    assert client.infer("busy", [tensor(np.ones((1, 384), np.float32))]) is not None


@pytest.mark.parametrize(
    ("model", "inputs", "options", "status", "told"),
    [
        # model      inputs                            options             status             told
        ("nobody", [tensor(X)], {}, "NOT_FOUND", "nobody"),
        ("../tiny", [tensor(X)], {}, "INVALID_ARGUMENT", "name"),
        ("a/b", [tensor(X)], {}, "INVALID_ARGUMENT", "name"),
        ("a\0b", [tensor(X)], {}, "INVALID_ARGUMENT", "name"),
        ("n" * 10_000, [tensor(X)], {}, "INVALID_ARGUMENT", "name"),
        ("tiny", [tensor(X)], {"model_version": "9"}, "NOT_FOUND", "9"),
        ("tiny", [tensor(X)], {"model_version": "x"}, "INVALID_ARGUMENT", "version"),
        ("tiny", [tensor(X, "z")], {}, "INVALID_ARGUMENT", "unknown input 'z'"),
        ("tiny", [], {}, "INVALID_ARGUMENT", "missing input ['x']"),
        ("tiny", [tensor(X), tensor(X, "z")], {}, "INVALID_ARGUMENT", "unknown input 'z'"),
        ("tiny", [tensor(X), tensor(X)], {}, "INVALID_ARGUMENT", "more than once"),
        ("tiny", [tensor(X.astype(np.int32))], {}, "INVALID_ARGUMENT", "FP32, got 'INT32'"),
        ("tiny", [tensor(X.reshape(4, 2))], {}, "INVALID_ARGUMENT", "got [4, 2]"),
        ("tiny", [tensor(X.reshape(8))], {}, "INVALID_ARGUMENT", "expected 2 dimensions"),
        ("tiny", [tensor(np.array(1, np.float32))], {}, "INVALID_ARGUMENT", "2 dimensions"),
        ("tiny", [tensor(X[:0])], {}, "INVALID_ARGUMENT", "of 1 to 4, got 0"),
        ("tiny", [tensor(np.ones((5, 4), np.float32))], {}, "INVALID_ARGUMENT", "1 to 4, got 5"),
        ("tiny", [tensor(X)], {"priority": -1}, "INVALID_ARGUMENT", ""),
        ("tiny", [tensor(X)], {"timeout": -1}, "INVALID_ARGUMENT", "timeout"),
        ("tiny", [tensor(X)], {"timeout": 1}, "DEADLINE_EXCEEDED", ""),
        ("tiny", [tensor(X)], {"sequence_id": 5}, "INVALID_ARGUMENT", "[sequence]"),
        (
            "tiny",
            [tensor(X)],
            {"outputs": [triton.InferRequestedOutput("q")]},
            "INVALID_ARGUMENT",
            "'q'",
        ),
    ],
)
def test_bad_input_gets_a_clear_status_and_the_next_request_works(
    client: Any, model: str, inputs: list[Any], options: dict[str, Any], status: str, told: str
) -> None:
    # protobuf itself refuses a negative uint64 before anything is sent.
    with pytest.raises((InferenceServerException, ValueError)) as refused:
        client.infer(model, inputs, **options)
    if isinstance(refused.value, InferenceServerException):
        assert refused.value.status() == f"StatusCode.{status}"
        assert told in refused.value.message()
        assert len(refused.value.message()) < 2_500
    check_serves(client)


def test_a_message_over_the_limit_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="larger than max") as refused:
        client.infer("tiny", [tensor(np.zeros(65 * 2**20, np.uint8))])
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    check_serves(client)


def test_a_foreign_artifact_is_refused_and_said_in_the_index(client: Any) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.load_model("broken")
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "/" not in refused.value.message().replace("model.pt2", ""), "a path of the node"
    check_serves(client)


def test_a_second_daemon_elsewhere_can_not_take_the_addresses(
    served: tuple[Site, Daemon], client: Any, tmp_path: Path
) -> None:
    site, daemon = served
    # Another state directory, so that only the addresses stand in its way.
    config = site.config_path.read_text()
    config = config.replace(f"{site.directory}/state", f"{tmp_path}/state")
    (tmp_path / "gpumuxd.toml").write_text(config)
    second = run_serve(tmp_path / "gpumuxd.toml")
    assert second.returncode == 1
    assert f"in use by process {daemon.pid} " in second.stderr
    check_serves(client)


def test_gpumuxctl(served: tuple[Site, Daemon], capsys: pytest.CaptureFixture[str]) -> None:
    site, _ = served
    target = ["--target", site.target]
    for command in (["status"], ["models"], ["infer", "tiny", "--input", "x=[[1,2,3,4]]"]):
        assert gpumuxctl([*target, "--json", *command]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert gpumuxctl([*target, *command]) == 0
        assert capsys.readouterr().out
    assert answer["outputs"]["y"]["values"] == [[3, 5, 7, 9]]
    assert gpumuxctl([*target, "load", "broken"]) == 1
    assert "INVALID_ARGUMENT" in capsys.readouterr().err


def test_a_model_that_gpumuxctl_loads_has_a_page(
    served: tuple[Site, Daemon], capsys: pytest.CaptureFixture[str]
) -> None:
    site, _ = served

    def ctl(*arguments: str) -> str:
        assert gpumuxctl(["--target", site.target, *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    def page() -> Any:
        (version,) = json.loads(ctl("model", "busy", "--json"))["versions"]
        return version

    ctl("unload", "busy")
    unloaded = page()
    assert (unloaded["state"], unloaded["reason"]) == ("UNAVAILABLE", "unloaded")
    assert unloaded["loaded"] is None
    assert unloaded["policy"]["class_max"] == "REALTIME"
    assert ctl("load", "busy") == "busy loaded\n"
    version = page()
    loaded = version["loaded"]
    assert version["state"] == "READY"
    assert (loaded["platform"], loaded["parameter_count"]) == ("pytorch_pt2", 384 * 384)
    assert loaded["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["batch", "384"]}]
    assert [bucket["sizes"][0] for bucket in loaded["buckets"]][:1] == [1]
    for bucket in loaded["buckets"]:
        longest = bucket["longest"]
        assert 0 < longest["device_ns"] <= 1.5 * bucket["run_ns"]
        assert 0 <= longest["first_node"] < longest["end_node"]
        assert 0 <= longest["group"] < loaded["group_count"]
    # Nobody has an SLO, and the device knows what its sync points cost: no bound is promised.
    assert loaded["bound"] == {"bound_ns": None, "origin": "least_delay", "model": ""}
    assert loaded["is_preemptible"] is None
    text = ctl("model", "busy")
    assert loaded["verdict"] in text, "on a pipe a sentence is a line"
    assert "input       x  FP32[batch, 384]" in text


@pytest.mark.parametrize(
    ("model", "told"),
    [
        # model, what of the refusal a person needs
        ("newer", "torch.export schema: expected 8.x, got 99.1, written by torch 4.2.0"),
        ("altered", "model.pt2 is not what model.pt2.sha256 says: expected 0000"),
        ("broken", "got 14 bytes that begin with b'not '"),
    ],
)
def test_gpumuxctl_says_why_a_model_was_refused_and_so_does_its_page(
    served: tuple[Site, Daemon], model: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site, _ = served
    target = ["--target", site.target]
    assert gpumuxctl([*target, "load", model]) == 1
    refusal = capsys.readouterr()
    assert (refusal.out, refusal.err.count("\n")) == ("", 1)
    assert refusal.err.startswith(f"gpumuxctl: INVALID_ARGUMENT: model {model!r} version 1: ")
    assert told in refusal.err
    assert gpumuxctl([*target, "model", model]) == 0
    page = capsys.readouterr().out
    assert "version 1  UNAVAILABLE" in page
    assert told in page
