"""The repository: what is found, what is reported as broken, and that nothing leads outside."""

import os
from pathlib import Path

import pytest

from gpumuxd.errors import InvalidManifest, InvalidModel, InvalidRequest, UnknownModel
from gpumuxd.models.repository import Repository


def add(root: Path, name: str, version: str = "1", manifest: str | None = None) -> Path:
    directory = root / name / version
    directory.mkdir(parents=True)
    (directory / "model.pt2").write_bytes(b"artifact")
    if manifest is not None:
        (root / name / "model.toml").write_text(manifest)
    return directory / "model.pt2"


def test_versions_are_sorted_as_numbers(tmp_path: Path) -> None:
    for version in ("10", "9", "1"):
        add(tmp_path, "b", version)
    add(tmp_path, "a", manifest="slo_ms = 5")
    scan = Repository([tmp_path]).scan()
    assert [(m.name, m.version) for m in scan.models] == [("a", 1), ("b", 1), ("b", 9), ("b", 10)]
    assert scan.models[0].manifest.slo_ms == 5
    assert scan.models[1].artifact == tmp_path / "b" / "1" / "model.pt2"
    assert scan.broken == ()


def test_find_takes_the_newest_or_the_one_that_is_named(tmp_path: Path) -> None:
    for version in ("2", "10"):
        add(tmp_path, "m", version)
    repository = Repository([tmp_path])
    assert repository.find("m").version == 10
    assert repository.find("m", "2").version == 2
    with pytest.raises(UnknownModel, match="no version '3'"):
        repository.find("m", "3")
    with pytest.raises(UnknownModel, match="no model 'other'"):
        repository.find("other")


@pytest.mark.parametrize(
    ("name", "version"),
    [("..", ""), ("a/b", ""), ("a\0", ""), ("", ""), ("a" * 10_000, ""), ("m", "x"), ("m", "-1"),
     ("m", "../1"), ("m", "0"), ("m", "01")],
)  # fmt: skip
def test_find_checks_names_before_it_looks(tmp_path: Path, name: str, version: str) -> None:
    with pytest.raises(InvalidRequest):
        Repository([tmp_path]).find(name, version)


def test_broken_entries_are_reported_with_the_reason(tmp_path: Path) -> None:
    add(tmp_path, "good")
    add(tmp_path, "bad manifest")
    add(tmp_path, "typo", manifest="slo = 1")
    add(tmp_path, "named", "latest")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "hollow" / "1").mkdir(parents=True)
    (tmp_path / ".hidden" / "1").mkdir(parents=True)
    (tmp_path / "a-file").write_text("ignored")
    scan = Repository([tmp_path]).scan()
    assert [m.name for m in scan.models] == ["good"]
    expected = [
        ("bad manifest", "", "model name 'bad manifest': expected letters"),
        ("hollow", "1", "model.pt2 is missing"),
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
        Repository([tmp_path]).find("typo")


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
    scan = Repository([root]).scan()
    assert scan.models == ()
    assert [e.name for e in scan.broken] == ["file", "loop", "manifest", "model", "version"]
    for name in ("model", "version", "file", "manifest", "loop"):
        with pytest.raises(InvalidModel, match="link"):
            Repository([root]).find(name)


def test_links_inside_the_repository_and_a_linked_root_are_fine(tmp_path: Path) -> None:
    real = tmp_path / "real"
    add(real, "m", "1")
    (real / "m" / "2").symlink_to("1")
    (tmp_path / "link").symlink_to(real)
    assert Repository([tmp_path / "link"]).find("m").version == 2


def test_the_first_of_two_repositories_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    add(first, "m", "1")
    add(second, "m", "7")
    add(second, "n", "1")
    repository = Repository([first, second])
    scan = repository.scan()
    assert [(m.name, m.version) for m in scan.models] == [("m", 1), ("n", 1)]
    assert [entry.name for entry in scan.broken] == ["m"]
    assert repository.find("m").version == 1


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    repository = Repository([tmp_path / "missing"])
    assert repository.scan().models == ()
    with pytest.raises(UnknownModel):
        repository.find("m")


def test_one_bad_model_hides_no_other(tmp_path: Path) -> None:
    add(tmp_path, "good")
    add(tmp_path, "digits", manifest="batch_max = " + "9" * 5000)
    add(tmp_path, "pipe")
    os.mkfifo(tmp_path / "pipe" / "model.toml")
    (tmp_path / "artifact" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "artifact" / "1" / "model.pt2")
    (tmp_path / "nowhere").symlink_to("not there")
    os.mkdir(os.fsencode(tmp_path) + b"/no\xfftext")
    scan = Repository([tmp_path]).scan()
    assert [m.name for m in scan.models] == ["good"]
    expected = [
        ("artifact", "1", "model.pt2 is missing or not a file"),
        ("digits", "", "model.toml is not TOML: Exceeds the limit"),
        ("no\\udcfftext", "", "model name"),
        ("pipe", "", "model.toml is not a regular file"),
    ]
    for entry, (name, version, reason) in zip(scan.broken, expected, strict=True):
        assert (entry.name, entry.version) == (name, version)
        assert entry.reason.startswith(reason)
        entry.name.encode()  # it travels as text


def test_a_model_that_is_broken_in_all_versions_says_why_of_the_newest(tmp_path: Path) -> None:
    for version in ("9", "10"):
        (tmp_path / "m" / version).mkdir(parents=True)
    (tmp_path / "m" / "10" / "model.pt2").symlink_to("/etc/passwd")
    repository = Repository([tmp_path])
    with pytest.raises(InvalidModel, match=r"^model 'm' version 10: model.pt2 is a link that"):
        repository.find("m")
    with pytest.raises(InvalidModel, match=r"^model 'm' version 9: model.pt2 is missing"):
        repository.find("m", "9")
    with pytest.raises(UnknownModel, match=r"^model 'm' has no version '3'$"):
        repository.find("m", "3")


def test_a_link_to_an_artifact_inside_leads_to_its_real_path(tmp_path: Path) -> None:
    store = tmp_path / ".store"
    store.mkdir()
    (store / "blob").write_bytes(b"artifact")
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.pt2").symlink_to("../../.store/blob")
    assert Repository([tmp_path]).find("m").artifact == store / "blob"
