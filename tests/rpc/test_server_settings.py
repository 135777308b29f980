"""Log and trace settings: read, changed as far as can be, refused in clear words else."""

import grpc
import pytest

from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.settings import LogLevels
from tests.rpc.front import CAMERA_TOKEN, Front, ask, refusal

SERVICE = "/inference.GRPCInferenceService"
LOG = f"{SERVICE}/LogSettings"
TRACE = f"{SERVICE}/TraceSetting"
BEARER = (("authorization", f"Bearer {CAMERA_TOKEN}"),)

Value = pb.LogSettingsRequest.SettingValue
TraceValue = pb.TraceSettingRequest.SettingValue


def log_request(**settings: Value) -> pb.LogSettingsRequest:
    return pb.LogSettingsRequest(settings=settings)


async def log(channel: grpc.aio.Channel, request: pb.LogSettingsRequest) -> dict[str, object]:
    answer = await ask(channel, LOG, request, pb.LogSettingsResponse)
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "")
        for key, value in answer.settings.items()
    }


async def trace(channel: grpc.aio.Channel, **settings: list[str]) -> dict[str, list[str]]:
    values = {key: TraceValue(value=value) for key, value in settings.items()}
    request = pb.TraceSettingRequest(settings=values)
    answer = await ask(channel, TRACE, request, pb.TraceSettingResponse)
    return {key: list(value.value) for key, value in answer.settings.items()}


# Logs


async def test_log_settings_are_read_changed_and_set_back(
    front: Front, channel: grpc.aio.Channel
) -> None:
    first = {
        "log_file": "",
        "log_format": "ISO8601",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
    }
    assert await log(channel, log_request()) == first
    changed = {**first, "log_info": False, "log_verbose_level": 2}
    request = log_request(log_info=Value(bool_param=False), log_verbose_level=Value(uint32_param=2))
    assert await log(channel, request) == changed
    assert front.switches.levels == LogLevels(verbose=2, info=False)
    assert await log(channel, log_request()) == changed
    same = log_request(log_file=Value(string_param=""), log_format=Value(string_param="ISO8601"))
    assert await log(channel, same) == changed
    assert await log(channel, log_request(log_info=Value(), log_verbose_level=Value())) == first


@pytest.mark.parametrize(
    ("settings", "status", "told"),
    [
        ({"log_file": Value(string_param="/tmp/x")}, "UNIMPLEMENTED", "'log_file' can't be"),
        ({"log_format": Value(string_param="default")}, "UNIMPLEMENTED", "'log_format' can't be"),
        ({"log_info": Value(uint32_param=1)}, "INVALID_ARGUMENT", "expected bool_param, got uint"),
        ({"log_verbose_level": Value(bool_param=True)}, "INVALID_ARGUMENT", "expected uint32"),
        ({"log_colour": Value(bool_param=True)}, "INVALID_ARGUMENT", "'log_colour': expected one"),
    ],
)
async def test_what_can_not_be_changed_changes_nothing(
    front: Front,
    channel: grpc.aio.Channel,
    settings: dict[str, pb.LogSettingsRequest.SettingValue],
    status: str,
    told: str,
) -> None:
    request = log_request(log_warning=Value(bool_param=False), **settings)
    refused, details, _ = await refusal(channel, LOG, request)
    assert (refused, told in details) == (status, True), details
    assert front.switches.levels == LogLevels()


async def test_only_admins_change_logs(front: Front, shared: grpc.aio.Channel) -> None:
    answer = await ask(shared, LOG, b"", pb.LogSettingsResponse, metadata=BEARER)
    assert answer.settings["log_info"].bool_param
    request = log_request(log_info=Value(bool_param=False))
    status, _, reason = await refusal(shared, LOG, request, metadata=BEARER)
    assert (status, reason) == ("PERMISSION_DENIED", "PermissionDenied")
    assert front.switches.levels == LogLevels()


async def test_logging_is_advertised(channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, f"{SERVICE}/ServerMetadata", b"", pb.ServerMetadataResponse)
    assert "logging" in answer.extensions


# Traces


async def test_trace_settings_say_that_nothing_is_traced(channel: grpc.aio.Channel) -> None:
    settings = await trace(channel)
    assert settings["trace_level"] == ["OFF"]
    assert await trace(channel, **settings) == settings
    assert await trace(channel, trace_level=[], trace_rate=["1000"]) == settings


async def test_a_trace_that_is_asked_for_is_refused(channel: grpc.aio.Channel) -> None:
    for value, key, status in [
        ("TIMESTAMPS", "trace_level", "UNIMPLEMENTED"),
        ("/tmp/x", "trace_file", "UNIMPLEMENTED"),
        ("x", "trace_colour", "INVALID_ARGUMENT"),
    ]:
        request = pb.TraceSettingRequest(settings={key: TraceValue(value=[value])})
        refused, details, _ = await refusal(channel, TRACE, request)
        assert (refused, repr(key) in details) == (status, True), details
    request = pb.TraceSettingRequest(model_name="nobody")
    assert (await refusal(channel, TRACE, request))[0] == "NOT_FOUND"
