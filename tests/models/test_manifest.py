"""Manifests: all keys optional, wrong ones named."""

import os
import socket
from pathlib import Path

import pytest

from gpumuxd.domain import PriorityClass
from gpumuxd.errors import InvalidManifest
from gpumuxd.models.manifest import MANIFEST_BYTES_MAX, Manifest, parse_manifest, read_manifest
from gpumuxd.models.version_policy import LATEST_MAX, LISTED_MAX, VERSION_MAX, VersionPolicy


def test_a_whole_manifest() -> None:
    manifest = parse_manifest(
        b'slo_ms = 32\ntenants = ["voice"]\ndevice = "cpu:1"\nreplicas = 3\n'
        b'priority_max = "REALTIME"\nbatch_max = 8\nversions = { latest = 2 }\n'
        b"idempotent = false\n"
    )
    assert manifest == Manifest(
        32.0, ("voice",), ("cpu:1",), 3, PriorityClass.REALTIME, 8, VersionPolicy(latest=2), False
    )
    assert manifest.slo_ns == 32_000_000


def test_replicas_on_several_devices() -> None:
    manifest = parse_manifest(b'device = ["cpu:1", "cpu:0"]\nreplicas = "all"')
    assert (manifest.device, manifest.replicas) == (("cpu:1", "cpu:0"), None)


def test_an_empty_one_and_none_at_all_are_the_default(tmp_path: Path) -> None:
    assert parse_manifest(b"") == read_manifest(tmp_path / "model.toml") == Manifest()
    assert Manifest().slo_ns is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slo = 3", "unknown key 'slo' (known: slo_ms, tenants"),
        ("[batching]\nrows_max = 4\nslo_ms = 3", "unknown key 'slo_ms' in [batching]"),
        ("[sequence]\nstate = []\nversions = 'all'", "unknown key 'versions' in [sequence]"),
        ("[slo_ms]\nx = 1", "slo_ms: expected a number of milliseconds"),
        ("idempotent = 0", "idempotent: expected true or false, got 0"),
        ("slo_ms = '3'", "slo_ms: expected a number"),
        ("slo_ms = true", "slo_ms: expected a number"),
        ("slo_ms = 0", "slo_ms: expected more than 0"),
        ("slo_ms = nan", "slo_ms: expected more than 0"),
        ("slo_ms = inf", "slo_ms: expected more than 0"),
        ("tenants = 'a'", "tenants: expected a list of names"),
        ("tenants = [1]", "tenants: expected a list of names"),
        ("tenants = ['']", "tenants: expected a list of names"),
        ("device = 'gpu'", "device: expected a device like 'cpu:0'"),
        ("device = 0", "device: expected a device"),
        ("device = []", "device: expected a device"),
        ("device = ['cpu:0', 1]", "device: expected a device"),
        ("device = ['cpu:0', 'cpu:0']", "device: expected a device like 'cpu:0', or a list of"),
        ("replicas = 0", "replicas: expected 1 to 1024, or 'all', got 0"),
        ("replicas = 1025", "replicas: expected 1 to 1024"),
        ("replicas = true", "replicas: expected 1 to 1024"),
        ("replicas = 'every'", "replicas: expected 1 to 1024, or 'all', got 'every'"),
        ("priority_max = 'realtime'", "priority_max: expected one of BEST_EFFORT, STANDARD"),
        ("priority_max = 1", "priority_max: expected one of"),
        ("batch_max = 0", "batch_max: expected a positive integer"),
        ("batch_max = 1.5", "batch_max: expected a positive integer"),
        ("batch_max = true", "batch_max: expected a positive integer"),
        ("slo_ms = ", "is not TOML"),
        # Python refuses to convert integers of over 4300 digits, in either direction.
        ("batch_max = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("slo_ms = 0x" + "f" * 5000, "slo_ms: expected more than 0 and at most 3600000, got an"),
        ("batch_max = 0x" + "f" * 5000, "batch_max: expected at most 2147483647, got an integer"),
        ("tenants = 0x" + "f" * 5000, "tenants: expected a list of names, got an integer"),
        ("device = 'cpu:" + "9" * 5000 + "'", "device: expected a device"),
        ("priority_max = []", "priority_max: expected one of"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        parse_manifest(text.encode())
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("'latest'", VersionPolicy(latest=1)),
        ("{ latest = 1 }", VersionPolicy(latest=1)),
        (f"{{ latest = {LATEST_MAX} }}", VersionPolicy(latest=LATEST_MAX)),
        ("'all'", VersionPolicy()),
        ("[3, 1]", VersionPolicy(listed=(1, 3))),
        (f"[{VERSION_MAX}]", VersionPolicy(listed=(VERSION_MAX,))),
        ("'newest'", None),
        ("1", None),
        ("true", None),
        ("{}", None),
        ("{ latest = 0 }", None),
        (f"{{ latest = {LATEST_MAX + 1} }}", None),
        ("{ latest = true }", None),
        ("{ latest = '1' }", None),
        ("{ latest = 1, first = 1 }", None),
        ("{ specific = [1] }", None),
        ("[]", None),
        ("[0]", None),
        ("[-1]", None),
        ("[1, 1]", None),
        ("[true]", None),
        ("['1']", None),
        (f"[{VERSION_MAX + 1}]", None),
        (str(list(range(1, LISTED_MAX + 2))), None),
    ],
)
def test_the_version_policy(text: str, policy: VersionPolicy | None) -> None:
    if policy is not None:
        assert parse_manifest(f"versions = {text}".encode()).versions == policy
        return
    with pytest.raises(InvalidManifest, match=r"versions: expected 'latest', \{ latest = 1 to"):
        parse_manifest(f"versions = {text}".encode())


@pytest.mark.parametrize(
    ("policy", "there", "selected"),
    [
        (VersionPolicy(latest=1), [], []),
        (VersionPolicy(latest=1), [2, 10, 9], [10]),
        (VersionPolicy(latest=2), [2, 10, 9], [9, 10]),
        (VersionPolicy(latest=5), [2, 1], [1, 2]),
        (VersionPolicy(), [2, 10, 9], [2, 9, 10]),
        (VersionPolicy(listed=(1, 7)), [7, 8], [1, 7]),
    ],
)
def test_what_a_policy_selects(
    policy: VersionPolicy, there: list[int], selected: list[int]
) -> None:
    assert policy.select(there) == selected


def test_another_policy_makes_no_version_another() -> None:
    some = parse_manifest(b"slo_ms = 1\nversions = 'all'")
    assert some.serves_as(parse_manifest(b"slo_ms = 1"))
    assert not some.serves_as(parse_manifest(b"slo_ms = 2\nversions = 'all'"))


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InvalidManifest, match="is not TOML"):
        parse_manifest(b"\xff\xfe")


def test_size_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_bytes(b"#" * (MANIFEST_BYTES_MAX + 1))
    with pytest.raises(InvalidManifest, match="is larger than"):
        read_manifest(path)


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "link"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # a plain open would wait for a writer for ever
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    else:
        (tmp_path / "other").write_text("slo_ms = 1")
        path.symlink_to("other")
    with pytest.raises(InvalidManifest, match=r"^model.toml is not a regular file$"):
        read_manifest(path)
