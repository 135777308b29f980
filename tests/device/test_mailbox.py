"""The mailbox: one descriptor for both directions, and back-pressure that loses nothing."""

import select
from collections.abc import Iterator

import pytest

from gpumuxd.device.mailbox import MAIL_PER_TURN_MAX, Mailbox
from gpumuxd.wire.channel import Channel, ChannelClosed
from gpumuxd.wire.frames import Ping, Pong


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Mailbox]]:
    parent, end = Channel.pair()
    mailbox = Mailbox(Channel(end))
    yield parent, mailbox
    parent.close()
    mailbox.close()


def is_readable(mailbox: Mailbox) -> bool:
    return bool(select.select([mailbox], [], [], 0)[0])


def fill(mailbox: Mailbox) -> int:
    """Post until the kernel takes no more; how many that were."""
    count = 0
    while mailbox.is_flushed:
        mailbox.post(Pong(count, 0))
        count += 1
    return count


def test_mail_makes_it_readable_until_it_was_collected(ends: tuple[Channel, Mailbox]) -> None:
    parent, mailbox = ends
    assert not is_readable(mailbox)
    assert mailbox.collect() == []
    parent.send(Ping(1))
    parent.send(Ping(2))
    assert is_readable(mailbox)
    assert mailbox.collect() == [(Ping(1), []), (Ping(2), [])]
    assert not is_readable(mailbox)


def test_one_turn_takes_a_bounded_amount(ends: tuple[Channel, Mailbox]) -> None:
    parent, mailbox = ends
    for count in range(MAIL_PER_TURN_MAX + 1):
        parent.send(Ping(count))
    assert len(mailbox.collect()) == MAIL_PER_TURN_MAX
    assert is_readable(mailbox)
    assert mailbox.collect() == [(Ping(MAIL_PER_TURN_MAX), [])]


def test_while_the_parent_is_behind_nothing_is_taken_and_nothing_lost(
    ends: tuple[Channel, Mailbox],
) -> None:
    parent, mailbox = ends
    posted = fill(mailbox)
    for count in range(posted, posted + 3000):  # far beyond the outbox of the channel
        mailbox.post(Pong(count, 0))
    parent.send(Ping(1))
    assert not is_readable(mailbox), "mail does not wake a loop that can't say anything"
    assert mailbox.collect() == []
    taken = []
    mail = []
    while len(taken) < posted + 3000:
        received = parent.receive()
        if received is None:
            assert is_readable(mailbox), "there is room again"
            mail += mailbox.collect()
        else:
            taken.append(received[0])
    assert taken == [Pong(count, 0) for count in range(posted + 3000)]
    assert mailbox.is_flushed
    assert mail + mailbox.collect() == [(Ping(1), [])]
    assert not is_readable(mailbox), "and nothing is left to do"


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_parent_that_goes_is_noticed(ends: tuple[Channel, Mailbox], is_behind: bool) -> None:
    parent, mailbox = ends
    if is_behind:
        fill(mailbox)
    parent.close()
    assert is_readable(mailbox)
    with pytest.raises(ChannelClosed):
        mailbox.collect()
