"""LogSettings and TraceSetting: what of the running daemon can be read and changed by its clients.

Logs have a switch for each level. There is no tracing: its settings can be read, and asking for
what they are anyway is no error, since stock clients set all of them at once.
"""

from collections.abc import Mapping
from typing import Protocol

from gpumuxd.errors import InvalidRequest, PermissionDenied, Unsupported
from gpumuxd.node.api import NodeApi
from gpumuxd.rpc.call import Caller, Method, for_tenants
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.settings import LogLevels

_FLAGS = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_VERBOSE = "log_verbose_level"
_LOG_FIXED = {"log_file": "", "log_format": "ISO8601"}
"""They go to standard error, whose reader is chosen where the daemon is started."""

_TRACE = {
    "trace_file": "",
    "trace_level": "OFF",
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
"""What a server that traces nothing answers; the figures are Triton's defaults."""


class LogSwitches(Protocol):
    """Which log lines the daemon writes."""

    @property
    def levels(self) -> LogLevels:
        """As they are now."""
        ...

    @property
    def levels_at_start(self) -> LogLevels:
        """As the daemon was told by its command line."""
        ...

    def set(self, levels: LogLevels) -> None:
        """From now on."""
        ...


class LogSettingsService:
    """`LogSettings`, which admins may change."""

    def __init__(self, switches: LogSwitches) -> None:
        self._switches = switches

    def methods(self) -> dict[str, Method]:
        """By its name on the wire."""
        return {"LogSettings": for_tenants(pb.LogSettingsRequest, self._log_settings)}

    async def _log_settings(
        self, request: pb.LogSettingsRequest, caller: Caller
    ) -> pb.LogSettingsResponse:
        if request.settings:
            if not caller.tenant.is_admin:
                raise PermissionDenied(
                    f"tenant {caller.tenant.name!r} is not an admin, who may change log settings"
                )
            self._switches.set(self._changed(request.settings))
        return _encode(self._switches.levels)

    def _changed(self, settings: Mapping[str, pb.LogSettingsRequest.SettingValue]) -> LogLevels:
        """All that was asked for, or an error and nothing."""
        now, first = self._switches.levels, self._switches.levels_at_start
        values = {key: getattr(now, name) for key, name in _FLAGS.items()}
        values[_VERBOSE] = now.verbose
        defaults = {key: getattr(first, name) for key, name in _FLAGS.items()}
        defaults[_VERBOSE] = first.verbose
        for key, value in settings.items():
            if key in _LOG_FIXED:
                _check_fixed(key, value)
            elif key not in values:
                known = ", ".join((*values, *_LOG_FIXED))
                raise InvalidRequest(f"log setting {key!r}: expected one of {known}")
            else:
                values[key] = _value(key, value, defaults[key])
        return LogLevels(
            verbose=values[_VERBOSE], **{name: values[key] for key, name in _FLAGS.items()}
        )


def _value(key: str, value: pb.LogSettingsRequest.SettingValue, default: int) -> int:
    expected = "uint32_param" if key == _VERBOSE else "bool_param"
    choice = value.WhichOneof("parameter_choice")
    if choice is None:
        return default  # what no value asks for
    if choice != expected:
        raise InvalidRequest(f"log setting {key!r}: expected {expected}, got {choice}")
    return value.uint32_param if key == _VERBOSE else value.bool_param


def _check_fixed(key: str, value: pb.LogSettingsRequest.SettingValue) -> None:
    """Raises Unsupported for any other value than there is."""
    choice = value.WhichOneof("parameter_choice")
    if choice is None or (choice == "string_param" and value.string_param == _LOG_FIXED[key]):
        return
    raise Unsupported(
        f"log setting {key!r} can't be changed: logs go to the daemon's standard error, as JSON "
        "or, on a terminal, as text"
    )


def _encode(levels: LogLevels) -> pb.LogSettingsResponse:
    response = pb.LogSettingsResponse()
    for key, name in _FLAGS.items():
        response.settings[key].bool_param = getattr(levels, name)
    response.settings[_VERBOSE].uint32_param = levels.verbose
    for key, text in _LOG_FIXED.items():
        response.settings[key].string_param = text
    return response


class TraceSettingService:
    """`TraceSetting`, of a daemon that has no tracing."""

    def __init__(self, node: NodeApi) -> None:
        self._node = node

    def methods(self) -> dict[str, Method]:
        """By its name on the wire."""
        return {"TraceSetting": for_tenants(pb.TraceSettingRequest, self._trace_setting)}

    async def _trace_setting(
        self, request: pb.TraceSettingRequest, caller: Caller
    ) -> pb.TraceSettingResponse:
        if request.model_name:
            await self._node.model_view(caller.tenant, request.model_name, "")
        for key, value in request.settings.items():
            if key not in _TRACE:
                raise InvalidRequest(f"trace setting {key!r}: expected one of {', '.join(_TRACE)}")
            if list(value.value) not in ([], [_TRACE[key]]):
                raise Unsupported(
                    f"trace setting {key!r}: gpumuxd traces nothing, it is {_TRACE[key]!r} and "
                    f"can't be {', '.join(value.value)!r}"
                )
        response = pb.TraceSettingResponse()
        for key, text in _TRACE.items():
            response.settings[key].value.append(text)
        return response
