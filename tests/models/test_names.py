"""Names of models and versions: each becomes a path component and a word in a log."""

import pytest

from gpumuxd.errors import InvalidRequest
from gpumuxd.models.names import check_model_name, version_number


@pytest.mark.parametrize(
    "name", ["minilm", "silero_vad", "a", "0", "MiniLM-L6.v2", "_x", "a" * 128]
)
def test_names(name: str) -> None:
    check_model_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/a", "a\\b", "a\0b", "a..b", ".hidden", "-rf", "a b", "a\n",
     "\u00e9", "\u0661", "a:b", "a%2f", "~", "a" * 129, "a" * 10_000],
)  # fmt: skip
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_model_name(name)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("42", 42), ("999999999", 999_999_999)])
def test_versions(text: str, number: int) -> None:
    assert version_number(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "+1", "01", "1.0", "latest", "1 ", "\u0661", "..", "1/2", "1\0", "9" * 10_000],
)
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a positive integer"):
        version_number(text)
