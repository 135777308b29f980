"""What connections may take, and how one that is dead is noticed, as gRPC's server is told it.

Every limit with its name, unit, default and reason. What a tenant's requests may take is the node's
business. Calls on one connection have no limit here: gRPC resets those above it without a reason,
also a few of clients that keep to it (it counts one for a moment longer than they do), and what
they may take is bounded by tenant.
"""

from dataclasses import dataclass

from gpumuxd.units import MIB, NS_PER_MS, NS_PER_S

_FRAME_BYTES = 1024 * 1024
"""HTTP/2's own 16 KiB makes a thousand frames of a 16 MB tensor."""

WINDOW_BYTES = 1024 * 1024
"""What a client may send of a message before it is received. gRPC's own window grows with the
bandwidth that it measures: measured on loopback to 16 MiB, of each of all calls that wait for a
place. Fixed, it needs no pings to measure with, and a message of this size comes in one go."""

_PENDING_CALLS_MAX = 2**31 - 1
"""Calls that came and were not taken yet. gRPC drops some at random above 1000, with a bare
CANCELLED; we take all at once and refuse what is too much with a reason. Such a call has no
message in memory but what HTTP/2's flow control lets in."""

_NEVER_MS = 2**31 - 1
"""What gRPC takes for no limit at all."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Of each listener; 0 is no limit where it says so."""

    connections_max: int = 1024
    """The next one is closed at once. A client needs one."""

    connection_idle_ns_max: int = 0
    """A connection without a call for this long is closed; its client opens another when it next
    needs one. 0: never."""

    keepalive_ns: int = 60 * NS_PER_S
    """A silent connection is asked for a sign of life: what became of a client that lost its power,
    TCP alone tells after hours. 0: never."""

    keepalive_timeout_ns: int = 20 * NS_PER_S
    """No answer for this long, and it is closed and its calls are cancelled."""

    client_ping_ns_min: int = 10 * NS_PER_S
    """Clients that ask us more often are cut off. gRPC's default is 5 minutes, and many clients are
    set to 10 or 20 seconds."""

    receiving_bytes_max: int = 512 * MIB
    """Messages that are received at the same time, of each tenant: `receiving.py`."""

    def options(self, message_bytes_max: int) -> list[tuple[str, int]]:
        """For gRPC."""
        return [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.max_frame_size", _FRAME_BYTES),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.server.max_pending_requests", _PENDING_CALLS_MAX),
            ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS_MAX),
            ("grpc.max_allowed_incoming_connections", self.connections_max),
            ("grpc.max_connection_idle_ms", _ms(self.connection_idle_ns_max)),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_ns)),
            ("grpc.keepalive_timeout_ms", _ms(self.keepalive_timeout_ns)),
            # Without it the keepalive's own timeout closes nothing: measured, gRPC 1.85.
            ("grpc.http2.ping_timeout_ms", _ms(self.keepalive_timeout_ns)),
            # Ours and theirs: a connection that waits for the next call can be dead as well.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(self.client_ping_ns_min)),
        ]


def _ms(duration_ns: int) -> int:
    return duration_ns // NS_PER_MS or _NEVER_MS
