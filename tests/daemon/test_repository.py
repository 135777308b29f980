"""Models over the life of several daemons: published, loaded, restored, followed, never written."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from gpumuxd_client import Client
from gpumuxd_client.errors import GpumuxdError

from gpumuxd.ctl.main import main as gpumuxctl
from tests.daemon.harness import Daemon, Site
from tests.node.artifacts import export_tiny

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "model.pt2"
    export_tiny(path)
    return path


def publish(repository: Path, version: int, artifact: Path) -> None:
    """As docs/repository.md says: aside, then in one step."""
    aside = repository / "tiny" / f".tmp-{version}"
    aside.mkdir(parents=True)
    shutil.copy(artifact, aside)
    aside.rename(repository / "tiny" / str(version))


def tree(root: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in (root, *root.rglob("*"))}


def version_that_answers(client: Client) -> str:
    result = client.infer("tiny", {"x": X})
    np.testing.assert_array_equal(result["y"], X * 2 + 1)
    return str(result.model_version)


def test_what_clients_loaded_serves_again_after_a_kill_and_nothing_is_written_to_the_models(
    socket_dir: Path, tmp_path: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "models"
    publish(repository, 1, artifact)
    (repository / "tiny" / "model.toml").write_text("versions = { latest = 2 }")
    site = Site(socket_dir, repository, startup_models=())
    with Daemon.running(site) as daemon:
        assert daemon.wait_notified("READY=1")["STATUS"] == "serving"
        assert gpumuxctl(["--target", site.target, "load", "tiny"]) == 0
        publish(repository, 2, artifact)
        before = tree(repository)
        assert gpumuxctl(["--target", site.target, "load", "tiny"]) == 0
        daemon.signal(signal.SIGKILL)
        daemon.wait_exit()
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)  # which means nothing to root
    with Daemon.running(site) as daemon, Client(site.target) as client:
        daemon.wait_notified("READY=1")
        while not client.server_ready():
            pass  # the loads that are restored
        assert version_that_answers(client) == "2"
        assert list(client.model_metadata("tiny").versions) == ["1", "2"]
        capsys.readouterr()
        assert gpumuxctl(["--target", site.target, "models"]) == 0
        rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]]
        assert rows == [["tiny", "1", "READY"], ["tiny", "2", "READY"]]
        assert gpumuxctl(["--target", site.target, "unload", "tiny"]) == 0
        assert {entry.state for entry in client.index()} == {"UNAVAILABLE"}
        assert '"tiny"' not in (socket_dir / "state" / "loads.json").read_text()
    for path in before:
        path.chmod(0o755)
    assert tree(repository) == before


def test_in_poll_mode_it_serves_what_is_published_and_clients_change_nothing(
    socket_dir: Path, tmp_path: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "models"
    publish(repository, 1, artifact)
    site = Site(
        socket_dir, repository, startup_models=(), repository_lines='mode = "poll"\npoll_s = 1'
    )
    with Daemon.running(site) as daemon, Client(site.target) as client:
        daemon.wait_notified("READY=1")
        while not client.server_ready():
            pass
        assert version_that_answers(client) == "1"
        publish(repository, 2, artifact)
        while version_that_answers(client) != "2":
            pass  # the next two looks; no request fails meanwhile
        capsys.readouterr()
        assert gpumuxctl(["--target", site.target, "unload", "tiny"]) == 1
        assert "FAILED_PRECONDITION: models follow the repository" in capsys.readouterr().err
        with pytest.raises(GpumuxdError, match="'poll'"):
            client.load("tiny")
        assert version_that_answers(client) == "2"
