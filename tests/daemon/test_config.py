"""The configuration: what the file says is what comes out, and each error names its key."""

from pathlib import Path

import pytest

from gpumuxd.daemon.config import Config, load_config, parse_config
from gpumuxd.domain import PriorityClass
from gpumuxd.errors import ConfigError
from gpumuxd.node.settings import RepositoryMode, SharedMemorySettings
from gpumuxd.node.tenants import DEFAULT_TENANT, hash_token
from gpumuxd.rpc.connections import ConnectionLimits
from gpumuxd.rpc.listener import Listener
from gpumuxd.settings import (
    DeviceSettings,
    Order,
    SchedulerSettings,
    Slicing,
    format_slicing,
    parse_slicing,
)
from gpumuxd.units import MIB, NS_PER_MS, NS_PER_S, NS_PER_US

ENVIRONMENT = {"STATE_DIRECTORY": "/state"}


def parse(text: str) -> Config:
    return parse_config(text, ENVIRONMENT)


def test_nothing_said_gives_the_defaults() -> None:
    config = parse("")
    assert config.state_dir == Path("/state")
    assert config.node.repository_paths == (Path("/state/models"),)
    assert config.node.repository_mode is RepositoryMode.EXPLICIT
    assert config.node.poll_ns == 15 * NS_PER_S
    assert config.node.journal_path == Path("/state/loads.json")
    assert config.node.devices == (DeviceSettings(profile_cache_dir="/state/profiles"),)
    assert config.node.tenants == ()
    assert config.listeners == (Listener("127.0.0.1:8001", DEFAULT_TENANT),)
    assert config.message_bytes_max == 64 * MIB
    assert config.drain_ns_max == 30 * NS_PER_S


FULL = """
[node]
state_dir = "/s"
startup_models = ["a", "b"]
drain_timeout_s = 1.5
read_timeout_s = 90
[repository]
paths = ["/r1", "/r2"]
mode = "poll"
poll_s = 2.5
[listen]
tcp = ["127.0.0.1:1", "[::1]:2"]
unix = ["/run/x.sock"]
message_mib_max = 8
receiving_mib_max = 16
connections_max = 9
connection_idle_s_max = 0.5
keepalive_s = 11
keepalive_timeout_s = 12
client_ping_s_min = 0.25
[[device]]
name = "cpu:0"
threads = 2
launch_cost_us = 7.5
arena_mib = 32
memory_mib_max = 100
[[device]]
name = "cpu:1"
[scheduler]
slicing = "none"
order = "fifo"
preemption_delay_ms_max = 0.5
slice_ms_max = 3
weigh_preemption_by_arrivals = true
best_effort_share_min = 0.05
window_max = 2
group_target_ms = 0.25
queue_requests_max = 10
frames_max = 6
frames_reserved = 1
[tenants.voice]
token = "a token of voice"
socket = "/run/voice.sock"
priority_max = "REALTIME"
priority_default = 1
weight = 3
memory_mib_max = 512
realtime_per_s = 50
realtime_burst = 4
requests_in_flight_max = 9
bytes_in_flight_max = 1000
admin = true
[tenants.index]
token_sha256 = "00000000000000000000000000000000000000000000000000000000000000Ff"
priority_max = "BEST_EFFORT"
"""


def test_everything_said_arrives() -> None:
    config = parse(FULL)
    assert config.state_dir == Path("/s")
    assert config.node.startup_models == ("a", "b")
    assert config.drain_ns_max == 1_500_000_000
    assert config.node.repository_paths == (Path("/r1"), Path("/r2"))
    assert config.node.repository_mode is RepositoryMode.POLL
    assert config.node.poll_ns == 2_500_000_000
    assert config.node.journal_path == Path("/s/loads.json")
    assert config.limits == ConnectionLimits(
        connections_max=9,
        connection_idle_ns_max=NS_PER_S // 2,
        keepalive_ns=11 * NS_PER_S,
        keepalive_timeout_ns=12 * NS_PER_S,
        client_ping_ns_min=NS_PER_S // 4,
        receiving_bytes_max=16 * MIB,
    )
    assert config.message_bytes_max == 8 * MIB
    first, second = config.node.devices
    scheduler = SchedulerSettings(
        slicing=Slicing.NONE,
        order=Order.FIFO,
        preemption_delay_ns_max=NS_PER_MS // 2,
        slice_ns_max=3 * NS_PER_MS,
        weigh_preemption_by_arrivals=True,
        best_effort_share_min_ppm=50_000,
        window_max=2,
        queue_requests_max=10,
        frames_max=6,
        frames_reserved=1,
    )
    assert second == DeviceSettings(
        device="cpu:1",
        group_target_ns=NS_PER_MS // 4,
        profile_cache_dir="/s/profiles",
        scheduler=scheduler,
    )
    assert (first.device, first.threads, first.launch_cost_ns) == ("cpu:0", 2, 7_500)
    assert config.node.loader.read_ns_max == 90 * NS_PER_S
    assert (first.arena_bytes, first.scheduler.memory_bytes_max) == (32 * MIB, 100 * MIB)
    voice, index = config.node.tenants
    assert voice.tenant.name == "voice"
    assert voice.tenant.priority_max is PriorityClass.REALTIME
    assert (voice.tenant.priority_default, voice.tenant.weight) == (1, 3)
    assert voice.tenant.memory_bytes_max == 512 * MIB
    assert (voice.tenant.realtime_per_s, voice.tenant.realtime_burst) == (50, 4)
    assert voice.tenant.is_admin
    assert voice.token_sha256 == hash_token("a token of voice")
    assert (voice.requests_in_flight_max, voice.bytes_in_flight_max) == (9, 1000)
    assert index.token_sha256 == bytes(31) + b"\xff"
    assert index.tenant.priority_default == 3
    assert config.listeners == (
        Listener("127.0.0.1:1"),
        Listener("[::1]:2"),
        Listener("unix:/run/x.sock"),
        Listener("unix:/run/voice.sock", voice.tenant),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "not TOML"),
        (f"x = {'[' * 100_000}", "not TOML: it is nested too deep"),
        (f"x = {'1' * 5000}", "not TOML: Exceeds the limit"),
        (
            f"[scheduler]\nwindow_max = 0x{'1' * 5000}",
            "from 1 to 64, got an integer of thousands of digits",
        ),
        (f"[listen]\ntcp = ['localhost:{'1' * 5000}']", "tcp: listener .*: expected host:port or"),
        ("[nod]", r"nod: unknown key; did you mean 'node'"),
        ("node = 1", r"node: expected a table, got 1"),
        ("[node]\nstate = '/x'", r"\[node\].state: unknown key; did you mean 'state_dir'"),
        ("[node]\nxyz = 1", r"\[node\].xyz: unknown key; known are \['drain_timeout_s'"),
        ("[node]\nstate_dir = 1", r"\[node\].state_dir: expected a string, got 1"),
        ("[node]\nstate_dir = 'x'", r"state_dir: expected an absolute path, got 'x'"),
        ("[node]\ndrain_timeout_s = 'x'", "drain_timeout_s: expected a number, got 'x'"),
        ("[node]\ndrain_timeout_s = true", "drain_timeout_s: expected a number, got True"),
        ("[node]\ndrain_timeout_s = nan", "drain_timeout_s: expected a number, got nan"),
        ("[node]\ndrain_timeout_s = inf", "expected a number from 0 to 3600, got inf"),
        ("[node]\ndrain_timeout_s = -1", "expected a number from 0 to 3600, got -1"),
        (
            "[shared_memory]\nuids = 1000",
            r"\[shared_memory\].uids: expected a list of whole numbers",
        ),
        ("[shared_memory]\nuids = [-1]", "uids: expected a list of whole numbers from 0"),
        ("[shared_memory]\nuids = [true]", "uids: expected a list of whole numbers from 0"),
        ("[node]\nstartup_models = 'a'", "startup_models: expected a list of strings, got 'a'"),
        ("[node]\nstartup_models = ['a', 'a']", "expected a list without repeats"),
        ("[node]\nstartup_models = ['../a']", r"\[node\].startup_models: model name"),
        ("[node]\nstartup_models = ['*', 'a']", r"expected '\*' alone, or names of models, got"),
        ("[node]\nstartup_models = ['a*']", r"\[node\].startup_models: model name 'a\*'"),
        ("[repository]\npaths = ['x']", "paths: expected an absolute path, got 'x'"),
        (
            f"[repository]\npaths = {[f'/{i}' for i in range(7)]}",
            "paths: expected at most 6 repositories, got 7",
        ),
        ("[repository]\nmode = 'none'", "mode: expected 'explicit' or 'poll', got 'none'"),
        ("[repository]\npoll_s = 0.5", "poll_s: expected a number from 1 to 86400, got 0.5"),
        (
            "[[device]]\nname = 'gpu'",
            r"^\[\[device\]\].name: expected 'cpu:<index>' \(this .*, got 'gpu'",
        ),
        ("[[device]]\nname = 'cuda:0'", "this version serves CPU devices alone.*got 'cuda:0'"),
        ("[[device]]\n[[device]]", "expected each device once, got .'cpu:0', 'cpu:0'"),
        (
            "[[device]]\n[[device]]\nnam = ''",
            r"\[\[device\]\].nam \(table 2\): unknown key; did you",
        ),
        ("[device]\nname = 'cpu:0'", r"device: expected tables written \[\[device\]\]"),
        ("[[device]]\nthreads = 0", "threads: expected a whole number from 1 to 1024, got 0"),
        ("[[device]]\nthreads = 1.0", "threads: expected a whole number from 1 to 1024, got 1.0"),
        ("[[device]]\nthreads = true", "threads: expected a whole number"),
        ("[[device]]\narena_mib = 0", "arena_mib: expected a number from 1 to"),
        ("[scheduler]\nslicing = 'x'", "slicing: expected 'adaptive', 'none', .*got 'x'"),
        ("[scheduler]\nslicing = 'every'", r"'every\(k\)', .*got 'every'"),
        ("[scheduler]\nslicing = 'every(0)'", "slicing: expected 1 to 1000000 operators per slice"),
        ("[scheduler]\nslicing = 'window(2, 65)'", "expected 1 to 64 slices in flight"),
        (
            "[scheduler]\nslicing = 'window(2, 5)'",
            r"at most window_max \(4\) slices in flight, got 5",
        ),
        (
            "[scheduler]\nbest_effort_share_min = 0.51",
            r"best_effort_share_min: .* from 0 to 0.5, got 0.51",
        ),
        ("[scheduler]\nbest_effort_share_min = 1e-9", "expected 0 or at least 1e-06, got 1e-09"),
        ("[scheduler]\npreemption_delay_ms_max = 1e-9", "0 or at least 1e-06, got 1e-09"),
        ("[[device]]\nlaunch_cost_us = 1e-4", "launch_cost_us: expected 0 or at least 0.001"),
        ("[scheduler]\nbest_effort_share_min = -0.1", "expected a number from 0 to 0.5"),
        ("[scheduler]\nbest_effort_share_min = '5%'", "expected a number, got '5%'"),
        ("[scheduler]\npreemption_delay_ms_max = 'x'", "expected 'auto' or a number, got 'x'"),
        ("[scheduler]\nframes_max = 4\nframes_reserved = 2", "frames_reserved: expected less"),
        ("[listen]\ntcp = ['x']", r"\[listen\].tcp: listener 'x': expected host:port"),
        ("[listen]\ntcp = ['unix:/x']", "tcp: expected host:port, got 'unix:/x'"),
        ("[listen]\nunix = ['x.sock']", "expected unix:/absolute/path"),
        ("[listen]\ntcp = []", r"\[listen\]: expected at least one address"),
        ("[listen]\nmessage_mib_max = 2048", "expected a number from 1 to 2047, got 2048"),
        ("[[device]]\narena_mib = 1e9", "expected a number from 1 to 1048576, got 1000000000.0"),
        ("[listen]\nunix = ['/x', 'unix:/x']", "expected each address once"),
        ("[tenants]\nx = 1", r"\[tenants\].x: expected a table \[tenants.x\], got int"),
        ("[tenants.x]", r"\[tenants.x\]: expected token, token_sha256, tls_subject or socket, got"),
        ("[tenants.'a b']\nsocket = '/x'", "expected a name of up to 64 letters"),
        ("[tenants.x]\ntoken = 'short'", r"\[tenants.x\].token: expected at least 16"),
        ("[tenants.x]\ntoken_sha256 = 'zz'", "token_sha256: expected 64 hexadecimal digits"),
        ("[tenants.x]\nsocet = '/x'", r"\[tenants.x\].socet: unknown key; did you mean 'socket'"),
        ("[tenants.x]\nsocket = '/x'\nprority_max = 1", "did you mean 'priority_max'"),
        ("[tenants.x]\npriority_max = 'HIGH'", "'BEST_EFFORT' or 'STANDARD' or 'REALTIME'"),
        ("[tenants.x]\npriority_default = 1", r"within priority_max \(STANDARD\), got 1"),
        ("[tenants.x]\nadmin = 1", "admin: expected true or false, got 1"),
        ("[tenants.x]\nweight = 0", "weight: expected a whole number from 1"),
    ],
)
def test_a_wrong_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "127.0.0.1:0"]
)
def test_without_tenants_this_machine_may_do_everything(address: str) -> None:
    config = parse(f"[listen]\ntcp = ['{address}']\nunix = ['/run/x.sock']")
    assert [x.tenant for x in config.listeners] == [DEFAULT_TENANT, DEFAULT_TENANT]


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:1", "[::]:1", "192.168.0.1:1", "[fe80::1]:1", "node:1", "localhost.evil:1", "0:1"],
)
def test_without_tenants_the_network_is_refused(address: str) -> None:
    text = f"[listen]\ntcp = ['127.0.0.1:2', '{address}']"
    with pytest.raises(ConfigError, match=r"\[listen\].tcp: .* configure \[tenants.NAME\]"):
        parse(text)
    tenants = "[tenants.x]\ntoken = 'a token of sixteen'"
    with pytest.raises(ConfigError, match=r"\[listen\].tcp: .* name it in tls instead"):
        parse(f"{text}\n{tenants}")
    config = parse(f"{text}\nallow_insecure = true\n{tenants}")
    assert [listener.tenant for listener in config.listeners] == [None, None]
    with pytest.raises(ConfigError, match=r"\[listen\].tcp: .* configure \[tenants.NAME\]"):
        parse(f"{text}\nallow_insecure = true")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tenants.a]\ntoken = ['{}']", "a string, got a value of type list"),
        ("[tenants.a]\ntoken = {{ file = '{}' }}", "a string, got a value of type dict"),
        ("[tenants.a]\ntoken_sha256 = ['{}']", "a string, got a value of type list"),
        ('[tenants.a]\ntoken = "{}\\u0000"', "a string, got a value of type str"),
        ("[tenants]\ntoken = '{}'", r"a table \[tenants.token\], got str"),
        ("[tenants]\na = '{}'", r"a table \[tenants.a\], got str"),
        ("[tenants.a]\ntokn = '{}'", "unknown key; did you mean 'token'"),
    ],
)
def test_no_message_repeats_a_token_that_is_written_wrongly(text: str, told: str) -> None:
    secret = "the secret token"
    with pytest.raises(ConfigError, match=told) as caught:
        parse(text.format(secret))
    assert secret not in str(caught.value)


def test_two_tenants_with_one_token_and_no_token_in_any_message() -> None:
    token = "the secret token"
    text = f"[tenants.a]\ntoken = '{token}'\n[tenants.b]\ntoken = '{token}'"
    with pytest.raises(ConfigError, match="two tenants have the same token"):
        parse(text)
    both = f"[tenants.a]\ntoken = '{token}'\ntoken_sha256 = '{'0' * 64}'"
    for bad in (both, f"[tenants.a]\ntoken = ' {token}'"):
        with pytest.raises(ConfigError) as caught:
            parse(bad)
        assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "bound_ns"),
    [("'auto'", None), ("0", None), ("2", 2 * NS_PER_MS), ("0.05", 50 * NS_PER_US)],
)
def test_the_bound(text: str, bound_ns: int | None) -> None:
    (device,) = parse(f"[scheduler]\npreemption_delay_ms_max = {text}").node.devices
    assert device.scheduler.preemption_delay_ns_max == bound_ns


def test_shared_memory_is_off_unless_allowed_and_each_tenant_has_its_users() -> None:
    assert not parse("").node.shared_memory.is_allowed
    config = parse(
        "[shared_memory]\nallow = true\nuids = [1000, 0]\nregions_max = 7\nregions_mib_max = 2\n"
        "[tenants.a]\nsocket = '/run/a.sock'\n"
        "[tenants.b]\nsocket = '/run/b.sock'\nshared_memory_uids = []"
    )
    assert config.node.shared_memory == SharedMemorySettings(True, (1000, 0), 7, 2 * MIB)
    assert [tenant.shared_memory_uids for tenant in config.node.tenants] == [None, ()]


def test_all_models_may_be_startup_models() -> None:
    assert parse("[node]\nstartup_models = ['*']").node.startup_models == ("*",)


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    with pytest.raises(ConfigError, match=r"c\.toml: No such file"):
        load_config(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"c\.toml: not UTF-8"):
        load_config(path)
    path.write_text("[x]")
    with pytest.raises(ConfigError, match=r"c\.toml: x: unknown key"):
        load_config(path)
    path.write_text("")
    assert load_config(path).message_bytes_max == 64 * MIB


@pytest.mark.parametrize(
    ("environment", "state_dir"),
    [
        ({"STATE_DIRECTORY": "/a:/b"}, "/a"),
        ({"STATE_DIRECTORY": "/a", "CACHE_DIRECTORY": "/c"}, "/a"),
    ],
)
def test_directories_from_systemd(environment: dict[str, str], state_dir: str) -> None:
    config = parse_config("", environment)
    assert config.state_dir == Path(state_dir)
    cache = environment.get("CACHE_DIRECTORY", state_dir)
    assert config.node.devices[0].profile_cache_dir == f"{cache}/profiles"


@pytest.mark.parametrize(
    ("text", "parsed", "again"),
    [
        ("adaptive", (Slicing.ADAPTIVE, 0, 0), None),
        ("none", (Slicing.NONE, 0, 0), None),
        ("layer", (Slicing.LAYER, 0, 1), None),
        ("every(1)", (Slicing.EVERY, 1, 1), None),
        ("every( 1000000 )", (Slicing.EVERY, 1_000_000, 1), "every(1000000)"),
        ("window(20)", (Slicing.WINDOW, 20, 2), "window(20, 2)"),
        ("window(20,3)", (Slicing.WINDOW, 20, 3), "window(20, 3)"),
        ("window(1, 1)", (Slicing.WINDOW, 1, 1), None),
    ],
)
def test_texts_of_slicing(text: str, parsed: tuple[Slicing, int, int], again: str | None) -> None:
    assert parse_slicing(text) == parsed
    assert format_slicing(*parsed) == (again or text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Adaptive",
        "every",
        "every()",
        "every(0)",
        "every(-1)",
        "every(1, 1)",
        "every(1000001)",
        "every(1) ",
        "window",
        "window(0)",
        "window(1, 0)",
        "window(1, 65)",
        "window(1, 2, 3)",
        "none(1)",
        "layer(1)",
        "every(\u0661)",
        "every(1.0)",
        "window(,2)",
    ],
)
def test_texts_that_are_no_slicing(text: str) -> None:
    with pytest.raises(ValueError, match=r"adaptive|operators|slices in flight"):
        parse_slicing(text)
