"""The repository: what is found, what is reported as broken, and that nothing leads outside."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from gpumuxd.errors import (
    GpumuxdError,
    InvalidManifest,
    InvalidModel,
    InvalidRequest,
    UnknownModel,
)
from gpumuxd.models import repository
from gpumuxd.models.listing import ModelListing, ModelVersion, Silence, merge
from gpumuxd.models.repository import Repository, RepositoryUnreadable, scan_all

HASH = hashlib.sha256(b"artifact").hexdigest()


def add(
    root: Path,
    name: str,
    version: str = "1",
    manifest: str | None = None,
    artifact: str = "model.pt2",
    checksum: str | None = None,
) -> Path:
    directory = root / name / version
    directory.mkdir(parents=True, exist_ok=True)
    (directory / artifact).write_bytes(b"artifact")
    if manifest is not None:
        (root / name / "model.toml").write_text(manifest)
    if checksum is not None:
        (directory / f"{artifact}.sha256").write_text(checksum)
    return directory / artifact


def find(root: Path, name: str) -> ModelListing:
    listing = Repository(root).find(name)
    assert listing is not None
    return listing


def newest(root: Path, name: str) -> ModelVersion:
    return find(root, name).select().versions[-1]


def test_versions_are_sorted_as_numbers(tmp_path: Path) -> None:
    for version in ("10", "9", "1"):
        add(tmp_path, "b", version)
    add(tmp_path, "a", manifest="slo_ms = 5")
    scan = scan_all([tmp_path])
    assert [(m.name, m.version) for m in scan.versions] == [("a", 1), ("b", 1), ("b", 9), ("b", 10)]
    assert scan.models["a"].manifest.slo_ms == 5
    assert scan.versions[1].artifact == tmp_path / "b" / "1" / "model.pt2"
    assert scan.broken == []


def test_a_version_is_found_by_its_number_whatever_the_policy_says(tmp_path: Path) -> None:
    for version in ("2", "10"):
        add(tmp_path, "m", version)
    listing = find(tmp_path, "m")
    assert listing.version(2).version == 2
    with pytest.raises(UnknownModel, match="no version '3'"):
        listing.version(3)
    assert Repository(tmp_path).find("other") is None


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        (None, [10]),
        ('"latest"', [10]),
        ("{ latest = 2 }", [9, 10]),
        ("{ latest = 9 }", [1, 9, 10]),
        ('"all"', [1, 9, 10]),
        ("[9, 1]", [1, 9]),
    ],
)  # fmt: skip
def test_the_policy_selects(tmp_path: Path, policy: str | None, selected: list[int]) -> None:
    for version in ("1", "9", "10"):
        add(tmp_path, "m", version, manifest=policy and f"versions = {policy}")
    selection = find(tmp_path, "m").select()
    assert [version.version for version in selection.versions] == selected
    assert selection.broken == ()


def test_a_listed_version_that_is_not_there_is_broken_and_hides_no_other(tmp_path: Path) -> None:
    add(tmp_path, "m", "1", manifest="versions = [1, 7, 8]")
    (tmp_path / "m" / "8").mkdir()
    selection = find(tmp_path, "m").select()
    assert [version.version for version in selection.versions] == [1]
    assert [(entry.version, entry.reason) for entry in selection.broken] == [
        ("7", "model.toml lists it under versions, and it is not there"),
        ("8", "model.pt2 or model.onnx is missing"),
    ]


def test_a_version_without_an_artifact_is_not_published_yet_and_a_bad_one_is(
    tmp_path: Path,
) -> None:
    add(tmp_path, "m", "1")
    (tmp_path / "m" / "2").mkdir()
    assert [v.version for v in find(tmp_path, "m").select().versions] == [1]
    add(tmp_path, "m", "3", checksum="?")
    selection = find(tmp_path, "m").select()
    assert selection.versions == ()
    assert [entry.version for entry in selection.broken] == ["3"]


def test_a_model_with_too_many_versions_is_broken_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "VERSIONS_MAX", 3)
    for version in ("1", "2", "3"):
        add(tmp_path, "most", version)
        add(tmp_path, "many", version)
    (tmp_path / "many" / ".junk").touch()  # entries that are no versions take time too
    add(tmp_path, "other")
    scan = scan_all([tmp_path])
    reason = "it has more than 3 files and directories"
    assert [(e.name, e.version, e.reason) for e in scan.broken] == [("many", "", reason)]
    assert [v.name for v in scan.versions] == ["most"] * 3 + ["other"]
    with pytest.raises(InvalidManifest, match=f"model 'many': {reason}"):
        find(tmp_path, "many").select()


def test_a_repository_with_too_many_models_is_not_listed_and_they_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MODELS_MAX", 2)
    add(tmp_path, "a")
    add(tmp_path, "b")
    assert sorted(Repository(tmp_path).scan()) == ["a", "b"]
    add(tmp_path, "c")
    with pytest.raises(RepositoryUnreadable, match="it has more than 2 files and directories"):
        Repository(tmp_path).scan()
    assert [newest(tmp_path, name).name for name in "abc"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "name", ["..", "a/b", "a\0", "", "a" * 10_000, "/m", "m/../../m", "%2e%2e/m", ".m", "ä"]
)
def test_find_checks_names_before_it_looks(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest):
        Repository(tmp_path).find(name)


@pytest.mark.parametrize(
    ("names", "found", "reason"),
    [
        (["model.pt2"], "pt2", ""),
        (["model.onnx"], "onnx", ""),
        (["model.pt2", "model.onnx"], "", "it has model.pt2 and model.onnx: expected one artifact"),
        (["model.pt"], "", "model.pt2 or model.onnx is missing"),
    ],
)
def test_an_artifact_is_one_of_two(
    tmp_path: Path, names: list[str], found: str, reason: str
) -> None:
    for name in names:
        add(tmp_path, "m", artifact=name)
    listing = find(tmp_path, "m")
    assert [version.artifact_format for version in listing.versions] == [found] * (not reason)
    assert [entry.reason for entry in listing.broken] == [reason] * bool(reason)


SHA = f"{HASH}  model.pt2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SHA, HASH),
        (f"{SHA}\n", HASH),
        (f"{SHA}\r\n", HASH),
        (f"{HASH.upper()} *model.pt2\n", HASH),
        (f"{HASH}  out/model.pt2\n", HASH),
        ("", None),
        (HASH, None),
        (f"{HASH} model.pt2", None),
        (f"{HASH[1:]}  model.pt2", None),
        (f"{HASH}0  model.pt2", None),
        (f"{HASH}  other.pt2", None),
        (f"{SHA}\n{SHA}\n", None),
        (f"{SHA}\n" + " " * 2000, None),
        ("ü" * 64 + "  model.pt2", None),
    ],
)
def test_a_checksum_is_read_as_sha256sum_writes_it(
    tmp_path: Path, text: str, expected: str | None
) -> None:
    add(tmp_path, "m", checksum=text)
    listing = find(tmp_path, "m")
    if expected is not None:
        assert [version.sha256 for version in listing.versions] == [expected]
        return
    (entry,) = listing.broken
    assert entry.reason.startswith("model.pt2.sha256: expected one line of 64 hexadecimal digits")
    assert entry.is_published


def test_without_a_checksum_nothing_is_expected(tmp_path: Path) -> None:
    add(tmp_path, "m")
    add(tmp_path, "n", artifact="model.onnx", checksum=f"{HASH}  model.onnx\n")
    # Of another artifact than the one that is there.
    (tmp_path / "n" / "1" / "model.pt2.sha256").write_text("?")
    assert newest(tmp_path, "m").sha256 is None
    assert newest(tmp_path, "n").sha256 == HASH


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "model.pt2.sha256 is not a regular file"),
        ("directory", "model.pt2.sha256 is not a regular file"),
        ("link", "model.pt2.sha256 is a link that leaves the repository"),
    ],
)
def test_a_checksum_that_is_no_file_of_the_repository(
    tmp_path: Path, kind: str, reason: str
) -> None:
    add(tmp_path, "m")
    path = tmp_path / "m" / "1" / "model.pt2.sha256"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd")
    assert [entry.reason for entry in find(tmp_path, "m").broken] == [reason]


def test_broken_entries_are_reported_with_the_reason(tmp_path: Path) -> None:
    add(tmp_path, "good")
    add(tmp_path, "bad manifest")
    add(tmp_path, "typo", manifest="slo = 1")
    add(tmp_path, "named", "latest")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "hollow" / "1").mkdir(parents=True)
    (tmp_path / ".hidden" / "1").mkdir(parents=True)
    (tmp_path / "a-file").write_text("ignored")
    scan = scan_all([tmp_path])
    assert [m.name for m in scan.versions] == ["good"]
    expected = [
        ("bad manifest", "", "model name 'bad manifest': expected letters"),
        ("hollow", "1", "model.pt2 or model.onnx is missing"),
        ("named", "latest", "model version 'latest': expected a positive integer"),
        ("nothing", "", "no version"),
        ("typo", "", "model.toml: unknown key 'slo'"),
    ]
    for entry, (name, version, reason) in zip(scan.broken, expected, strict=True):
        assert (entry.name, entry.version) == (name, version)
        assert entry.reason.startswith(reason)


def test_find_says_why_a_model_is_broken(tmp_path: Path) -> None:
    add(tmp_path, "typo", manifest="slo = 1")
    with pytest.raises(InvalidManifest, match="unknown key 'slo'"):
        find(tmp_path, "typo").select()


def test_links_that_leave_the_repository_are_refused(tmp_path: Path) -> None:
    root, outside = tmp_path / "models", tmp_path / "outside"
    root.mkdir()
    stolen = add(outside, "secret", manifest="slo_ms = 1")
    (root / "model").symlink_to(outside / "secret")
    (root / "version").mkdir()
    (root / "version" / "1").symlink_to(outside / "secret" / "1")
    (root / "file" / "1").mkdir(parents=True)
    (root / "file" / "1" / "model.pt2").symlink_to(stolen)
    add(root, "manifest")
    (root / "manifest" / "model.toml").symlink_to(outside / "secret" / "model.toml")
    (root / "loop" / "1").mkdir(parents=True)
    (root / "loop" / "1" / "model.pt2").symlink_to("model.pt2")
    scan = scan_all([root])
    assert scan.versions == []
    assert [e.name for e in scan.broken] == ["file", "loop", "manifest", "model", "version"]
    for name in ("model", "version", "file", "manifest", "loop"):
        with pytest.raises(InvalidModel, match="link"):
            _raise_reason(find(root, name))


def test_links_inside_the_repository_and_a_linked_root_are_fine(tmp_path: Path) -> None:
    real = tmp_path / "real"
    add(real, "m", "1")
    (real / "m" / "2").symlink_to("1")
    (tmp_path / "link").symlink_to(real)
    assert newest(tmp_path / "link", "m").version == 2


def _raise_reason(listing: ModelListing) -> None:
    for entry in listing.select().broken:
        listing.version(int(entry.version))


def test_the_first_of_several_repositories_wins(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    add(paths[0], "m", "1")
    add(paths[1], "m", "7")
    add(paths[1], "n", "1")
    add(paths[2], "n", "2")
    scan = scan_all(paths)
    assert [(m.name, m.version) for m in scan.versions] == [("m", 1), ("n", 1)]
    assert [(entry.name, entry.version, entry.reason) for entry in scan.shadowed] == [
        ("m", "", "repository 2 in [repository].paths has this name too; the one in repository 1 "
         "counts"),
        ("n", "", "repository 3 in [repository].paths has this name too; the one in repository 2 "
         "counts"),
    ]  # fmt: skip


def test_one_that_can_not_be_read_hides_no_other(tmp_path: Path) -> None:
    add(tmp_path / "good", "m")
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    bad = [tmp_path / "missing", tmp_path / "file", tmp_path / "circle"]
    scan = scan_all([*bad, tmp_path / "good"])
    assert [version.name for version in scan.versions] == ["m"]
    for path in bad:
        with pytest.raises(RepositoryUnreadable):
            Repository(path).scan()
        with pytest.raises(RepositoryUnreadable):
            Repository(path).find("m")


def test_a_silent_repository_keeps_its_names_from_later_ones(tmp_path: Path) -> None:
    add(tmp_path, "m")
    add(tmp_path, "n")
    scan = merge([Silence("it hangs", frozenset({"m", "gone"})), Repository(tmp_path).scan()])
    assert [version.name for version in scan.versions] == ["n"]
    assert scan.unknown == {"m": "it hangs", "gone": "it hangs"}
    assert [entry.name for entry in scan.shadowed] == ["m"]
    scan = merge([Repository(tmp_path).scan(), Silence("it hangs", frozenset({"m", "gone"}))])
    assert [version.name for version in scan.versions] == ["m", "n"]
    assert scan.unknown == {"gone": "it hangs"}


def test_two_looks_are_equal_until_something_changes(tmp_path: Path) -> None:
    artifact = add(tmp_path, "m", manifest="slo_ms = 1")
    (tmp_path / "m" / "2").mkdir()
    before = Repository(tmp_path).scan()
    assert Repository(tmp_path).scan() == before
    changes = [
        lambda: artifact.write_bytes(b"other size"),
        lambda: os.utime(artifact, ns=(1, 1)),
        lambda: artifact.with_name("model.pt2.sha256").write_text(SHA),
        lambda: (tmp_path / "m" / "model.toml").write_text("slo_ms = 2"),
        lambda: add(tmp_path, "m", "2"),
        lambda: (tmp_path / "m" / "1").rename(tmp_path / "m" / "3"),
    ]
    for change in changes:
        change()
        after = Repository(tmp_path).scan()
        assert after != before
        before = after


def test_nothing_is_written(tmp_path: Path) -> None:
    add(tmp_path, "m", manifest="slo_ms = 1", checksum=SHA)
    before = tree(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o555)
    assert newest(tmp_path, "m").sha256 == HASH
    scan_all([tmp_path])
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    assert tree(tmp_path) == before


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """When each file and directory was last written, and its size: root may write anywhere."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in (root, *root.rglob("*"))
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_says_so(tmp_path: Path) -> None:
    add(tmp_path, "m")
    directory = tmp_path / "m" / "1"
    directory.chmod(stat.S_IRUSR)
    try:
        (entry,) = find(tmp_path, "m").broken
        assert entry.reason == "the artifact can't be read: Permission denied"
    finally:
        directory.chmod(0o755)


def test_one_bad_model_hides_no_other(tmp_path: Path) -> None:
    add(tmp_path, "good")
    add(tmp_path, "digits", manifest="batch_max = " + "9" * 5000)
    add(tmp_path, "pipe")
    os.mkfifo(tmp_path / "pipe" / "model.toml")
    (tmp_path / "artifact" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "artifact" / "1" / "model.pt2")
    (tmp_path / "nowhere").symlink_to("not there")
    os.mkdir(os.fsencode(tmp_path) + b"/no\xfftext")
    scan = scan_all([tmp_path])
    assert [m.name for m in scan.versions] == ["good"]
    expected = [
        ("artifact", "1", "model.pt2 is not a regular file"),
        ("digits", "", "model.toml is not TOML: Exceeds the limit"),
        ("no\\udcfftext", "", "model name"),
        ("pipe", "", "model.toml is not a regular file"),
    ]
    for entry, (name, version, reason) in zip(scan.broken, expected, strict=True):
        assert (entry.name, entry.version) == (name, version)
        assert entry.reason.startswith(reason)
        entry.name.encode()  # it travels as text


def test_each_version_says_why_it_is_broken(tmp_path: Path) -> None:
    for version in ("9", "10"):
        (tmp_path / "m" / version).mkdir(parents=True)
    with pytest.raises(InvalidModel, match=r"^model 'm' version 10: model.pt2 or model.onnx is"):
        find(tmp_path, "m").select()
    (tmp_path / "m" / "10" / "model.pt2").symlink_to("/etc/passwd")
    listing = find(tmp_path, "m")
    expected: list[tuple[int, type[GpumuxdError], str]] = [
        (10, InvalidModel, r"^model 'm' version 10: model.pt2 is a link that"),
        (9, InvalidModel, r"^model 'm' version 9: model.pt2 or model.onnx is missing"),
        (3, UnknownModel, r"^model 'm' has no version '3'$"),
    ]
    for number, error, message in expected:
        with pytest.raises(error, match=message):
            listing.version(number)


def test_a_link_to_an_artifact_inside_leads_to_its_real_path(tmp_path: Path) -> None:
    store = tmp_path / ".store"
    store.mkdir()
    (store / "blob").write_bytes(b"artifact")
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").symlink_to("../../.store/blob")
    found = newest(tmp_path, "m")
    assert (found.artifact, found.artifact_format) == (store / "blob", "onnx")
