"""Which objects are opened, and that nothing but the place asked for is read or written."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumuxd.errors import InvalidRequest, UnknownRegion
from gpumuxd.node.region_file import RegionFile, open_object, read_into, write_from
from tests.node.shm import DIRECTORY, Objects, objects

OURS = (os.geteuid(),)


@pytest.fixture
def shm() -> Iterator[Objects]:
    with objects() as made:
        yield made


@pytest.fixture
def file(shm: Objects) -> Iterator[RegionFile]:
    found = open_object(shm.make(b"0123456789").name, OURS, 10)
    yield found
    os.close(found.fd)


@pytest.mark.parametrize("slash", ["", "/"])
def test_an_object_is_opened_by_its_name(shm: Objects, slash: str) -> None:
    path = shm.make(b"0123456789")
    file = open_object(slash + path.name, OURS, 10)
    assert file.is_writable
    assert os.pread(file.fd, 10, 0) == b"0123456789"
    assert not os.get_inheritable(file.fd)
    os.close(file.fd)


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "..", "/..", "//a", "a/b", "/../etc/passwd", "a\0b", "n" * 256, "\ud800"],
)
def test_a_key_is_one_name(key: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a key of 1 to 255 bytes"):
        open_object(key, OURS, 1)


def refused(path: Path, uids: tuple[int, ...] = OURS) -> str:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UnknownRegion) as caught:
        open_object(path.name, uids, 0)
    assert os.listdir("/proc/self/fd") == before
    return caught.value.message.replace(path.name, "NAME")


def test_whatever_is_not_an_object_of_ours_is_refused_alike(shm: Objects) -> None:
    secret = shm.make(b"secret")
    nothing, link, dangling, fifo, directory = (shm.path() for _ in range(5))
    link.symlink_to(secret)
    dangling.symlink_to("/etc/passwd")
    os.mkfifo(fifo)
    directory.mkdir()
    try:
        told = {refused(path) for path in (nothing, link, dangling, fifo, directory)}
        told.add(refused(secret, uids=(OURS[0] + 1,)))
        told.add(refused(secret, uids=()))
    finally:
        directory.rmdir()
    assert len(told) == 1, "it tells nobody what is there"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_what_may_only_be_read_is_opened_for_that(shm: Objects) -> None:
    path = shm.make(b"0123456789")
    path.chmod(0o400)
    file = open_object(path.name, OURS, 10)
    assert not file.is_writable
    os.close(file.fd)


def test_an_object_that_is_too_small_is_refused_with_the_numbers(shm: Objects) -> None:
    with pytest.raises(InvalidRequest, match="has 10 bytes, the region ends at 11"):
        open_object(shm.make(bytes(10)).name, OURS, 11)


def test_reading_and_writing_keep_to_their_place(file: RegionFile) -> None:
    room = bytearray(5)
    read_into(file, 3, memoryview(room)[1:4], "x")
    assert room == bytes([0]) + b"345" + bytes([0])
    write_from(file, 8, memoryview(b"AB"), "y")
    write_from(file, 0, memoryview(b""), "y")
    assert os.pread(file.fd, 99, 0) == b"01234567AB"


def test_an_object_that_was_made_smaller_is_not_read_and_does_not_grow(file: RegionFile) -> None:
    os.ftruncate(file.fd, 6)
    with pytest.raises(InvalidRequest, match="x: expected 4 bytes, the object ends after 2"):
        read_into(file, 4, memoryview(bytearray(4)), "x")
    with pytest.raises(InvalidRequest, match=r"y: expected room for 4 bytes at 4 .* has 6 bytes"):
        write_from(file, 4, memoryview(bytes(4)), "y")
    assert os.pread(file.fd, 99, 0) == b"012345"


def test_what_the_kernel_refuses_is_the_owners_affair(shm: Objects) -> None:
    path = shm.make(bytes(4))
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(InvalidRequest, match="y: its shared memory object: Bad file"):
            write_from(RegionFile(fd, True), 0, memoryview(b"1234"), "y")
    finally:
        os.close(fd)


def test_the_directory_is_that_of_the_objects() -> None:
    assert DIRECTORY.is_dir()
