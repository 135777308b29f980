"""Channel: order, back-pressure, descriptors, and peers that send rubbish or die."""

import os
import socket
from array import array
from collections.abc import Iterator

import msgspec
import pytest

from gpumuxd.domain import PriorityClass
from gpumuxd.wire.channel import (
    FDS_MAX,
    Channel,
    ChannelClosed,
    ChannelFull,
    MalformedFrame,
)
from gpumuxd.wire.frames import (
    FRAME_BYTES_MAX,
    AskStatistics,
    Block,
    ModelFailed,
    Ping,
    Stop,
    Submit,
    encode,
)

SUBMIT = Submit(
    request_id=7,
    tenant="camera",
    model="m/1",
    priority_class=PriorityClass.REALTIME,
    bucket=(8, 64),
    rows=5,
    arrived_ns=1,
    deadline_ns=None,
    inputs=(Block(0, 64, "FP32", (4, 4)),),
    outputs=(Block(64, 64, "INT64", ()),),
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    with ours, Channel(theirs) as other:
        yield ours, other


@pytest.fixture
def raw() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = Channel.pair()
    with ours, theirs:
        yield ours, theirs


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def send_fds(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])


def test_frames_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    ours, other = ends
    frames = [SUBMIT, Ping(1), AskStatistics(), Stop()]
    for frame in frames:
        ours.send(frame)
    assert [other.receive() for _ in frames] == [(frame, []) for frame in frames]
    assert other.receive() is None


def test_a_descriptor_arrives_as_another_one_that_is_close_on_exec(
    ends: tuple[Channel, Channel],
) -> None:
    ours, other = ends
    reader, writer = os.pipe()
    ours.send(Ping(1), fds=[writer])
    os.close(writer)
    received = other.receive()
    assert received is not None
    frame, (fd,) = received
    assert frame == Ping(1)
    assert not os.get_inheritable(fd)
    os.write(fd, b"x")
    os.close(fd)
    assert os.read(reader, 2) == b"x"
    os.close(reader)


def test_the_largest_frame_passes(ends: tuple[Channel, Channel]) -> None:
    ours, other = ends
    overhead = len(encode(ModelFailed("m", "")))
    # The length prefix of a long string is 4 bytes longer than that of an empty one.
    frame = ModelFailed("m", "x" * (FRAME_BYTES_MAX - overhead - 4))
    assert FRAME_BYTES_MAX - 4 <= len(encode(frame)) <= FRAME_BYTES_MAX
    ours.send(frame)
    assert other.receive() == (frame, [])


def test_a_full_kernel_buffer_fills_the_outbox_and_nothing_blocks_or_is_lost() -> None:
    ours, theirs = Channel.pair()
    channel = Channel(theirs)
    with ours, channel:
        sent = 0
        while not ours.wants_write:
            ours.send(Ping(sent))
            sent += 1
        assert not ours.flush(), "nobody has read anything"
        received = []
        while ours.wants_write or len(received) < sent:
            got = channel.receive()
            assert got is not None
            received.append(got[0])
            ours.flush()
        assert received == [Ping(i) for i in range(sent)]
        assert ours.flush()


def test_a_full_outbox_refuses_and_takes_again_after_a_flush() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender, receiver = Channel(ours, outbox_frames_max=2), Channel(theirs)
    with sender, receiver:
        sent = 0
        while sent < 2 or not sender.wants_write:
            sender.send(Ping(sent))
            sent += 1
        sender.send(Ping(sent))
        sent += 1
        with pytest.raises(ChannelFull):
            sender.send(Ping(-1))
        for expected in range(sent):
            got = receiver.receive()
            assert got is not None
            assert got[0] == Ping(expected)
            sender.flush()
        sender.send(Ping(sent))
        assert receiver.receive() == (Ping(sent), [])


def test_a_descriptor_in_the_outbox_outlives_the_callers() -> None:
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    with ours, other:
        while not ours.wants_write:
            ours.send(Ping(0))
        reader, writer = os.pipe()
        ours.send(Ping(1), fds=[writer])
        os.close(writer)
        fds: list[int] = []
        while not fds:
            got = other.receive()
            assert got is not None
            fds = got[1]
            ours.flush()
        os.write(fds[0], b"x")
        os.close(fds[0])
        assert os.read(reader, 2) == b"x"
        assert os.read(reader, 1) == b"", "no copy of the descriptor is left"
        os.close(reader)


def test_close_drops_the_outbox_and_its_descriptors() -> None:
    before = open_fds()
    ours, theirs = Channel.pair()
    with theirs:
        while not ours.wants_write:
            ours.send(Ping(0))
        ours.send(Ping(1), fds=[0, 1])
        ours.close()
        ours.close()
    assert open_fds() == before


def test_end_of_file_comes_after_what_was_sent(ends: tuple[Channel, Channel]) -> None:
    ours, other = ends
    ours.send(Ping(1))
    ours.close()
    assert other.receive() == (Ping(1), [])
    with pytest.raises(ChannelClosed):
        other.receive()
    with pytest.raises(ChannelClosed):
        other.send(Ping(2))


def test_a_peer_that_dies_with_unread_mail_still_delivers_its_last_frames(
    ends: tuple[Channel, Channel],
) -> None:
    ours, other = ends
    other.send(Ping(1))  # never read: the kernel turns the close into a reset
    ours.send(Ping(2))
    ours.send(Ping(3))
    ours.close()
    assert other.receive() == (Ping(2), [])
    assert other.receive() == (Ping(3), [])
    with pytest.raises(ChannelClosed):
        other.receive()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xc1", id="not msgpack"),
        pytest.param(msgspec.msgpack.encode({"type": "Nonsense"}), id="unknown type"),
        pytest.param(msgspec.msgpack.encode({"type": "Ping"}), id="field missing"),
        pytest.param(msgspec.msgpack.encode({"type": "Ping", "count": "x"}), id="wrong type"),
        pytest.param(encode(SUBMIT)[:-1], id="truncated"),
        pytest.param(encode(SUBMIT) + b"\x00", id="trailing byte"),
        pytest.param(b"\x00" * (FRAME_BYTES_MAX + 1), id="one byte too long"),
        pytest.param(b"\x00" * (FRAME_BYTES_MAX + 1000), id="cut by the kernel"),
    ],
)
def test_rubbish_is_an_error_once_and_leaks_no_descriptor(
    raw: tuple[Channel, socket.socket], data: bytes
) -> None:
    channel, peer = raw
    before = open_fds()
    send_fds(peer, data, [peer.fileno(), peer.fileno()])
    peer.send(encode(Ping(1)))
    with pytest.raises(MalformedFrame):
        channel.receive()
    assert open_fds() == before
    assert channel.receive() == (Ping(1), []), "the next frame is not affected"


def test_too_many_descriptors_are_an_error_and_none_leaks(
    raw: tuple[Channel, socket.socket],
) -> None:
    channel, peer = raw
    before = open_fds()
    send_fds(peer, encode(Ping(1)), [peer.fileno()] * (FDS_MAX + 1))
    with pytest.raises(MalformedFrame):
        channel.receive()
    assert open_fds() == before


def test_from_fd_takes_seqpacket_only() -> None:
    stream, other = socket.socketpair()
    with stream, other:
        with pytest.raises(ValueError, match="SEQPACKET"):
            Channel.from_fd(stream.fileno())
        assert is_open(stream.fileno()), "a refused descriptor stays its owner's"
    ours, theirs = Channel.pair()
    with ours, Channel.from_fd(theirs.detach()) as channel:
        channel.send(Ping(3))
        assert ours.receive() == (Ping(3), [])
