"""What a configuration says differently from another, and when it counts."""

import pytest

from gpumuxd.daemon.changes import apply, changes
from gpumuxd.daemon.config import parse_config

SOCKET = "[tenants.voice]\nsocket = '/run/voice.sock'\n"


@pytest.mark.parametrize(
    ("old", "new", "told", "is_applied"),
    [
        ("", "[node]\ndrain_timeout_s = 5", "[node].drain_timeout_s: not set -> 5", True),
        ("[repository]\npoll_s = 5", "", "[repository].poll_s: 5 -> not set", True),
        ("[node]\nread_timeout_s = 5", "[node]\nread_timeout_s = 6", "5 -> 6", True),
        (SOCKET, f"{SOCKET}weight = 2", "[tenants.voice].weight: not set -> 2", True),
        (SOCKET, "", "[tenants.voice].socket: '/run/voice.sock' -> not set", False),
        ("", "[node]\nstate_dir = '/x'", "[node].state_dir: not set -> '/x'", False),
        ("", "[node]\nstartup_models = ['m']", "startup_models: not set -> ['m']", False),
        ("", "[repository]\nmode = 'poll'", "[repository].mode: not set -> 'poll'", False),
        ("", "[listen]\ntcp = ['[::1]:7']", "[listen].tcp: not set -> ['[::1]:7']", False),
        ("", "[scheduler]\nwindow_max = 2", "[scheduler].window_max: not set -> 2", False),
        ("", "[[device]]\nthreads = 2", "[[device]].threads (table 1): not set -> 2", False),
    ],
)
def test_a_change_is_told_by_its_key_and_counts_at_once_or_not(
    old: str, new: str, told: str, is_applied: bool
) -> None:
    (change,) = changes(parse_config(old).stated, parse_config(new).stated)
    assert str(change).endswith(told)
    assert change.is_applied == is_applied
    assert changes(parse_config(new).stated, parse_config(new).stated) == ()


def test_a_secret_changes_and_is_not_told() -> None:
    text = "[tenants.a]\ntoken = '{}'"
    first, second = (parse_config(text.format(c * 20)).stated for c in "xy")
    (change,) = changes(first, second)
    assert str(change) == "[tenants.a].token: (secret) -> (secret)"
    assert change.is_applied
    assert "xxxx" not in repr(first)


def test_what_waits_for_the_next_start_is_told_again_until_then() -> None:
    started = parse_config("[node]\ndrain_timeout_s = 1").stated
    read = parse_config("[node]\ndrain_timeout_s = 2\n[scheduler]\nwindow_max = 2").stated
    found = changes(started, read)
    in_force = apply(started, [change for change in found if change.is_applied])
    (left,) = changes(in_force, read)
    assert left.key == "[scheduler].window_max"
    back = changes(in_force, started)
    assert apply(in_force, back) == started
