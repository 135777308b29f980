"""What the documents say of the configuration is what the parsers do: keys, defaults, ranges."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import NamedTuple

import pytest

from gpumuxd.daemon.config import parse_config
from gpumuxd.daemon.main import main
from gpumuxd.errors import ConfigError, InvalidManifest
from gpumuxd.models.manifest import Manifest, parse_manifest
from gpumuxd.programs.export import ExportRequest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "systemd" / "gpumuxd.toml"
ENVIRONMENT = {"STATE_DIRECTORY": "/state"}

TABLES = (
    "[node]",
    "[repository]",
    "[listen]",
    "[shared_memory]",
    "[[device]]",
    "[placement]",
    "[scheduler]",
    "[tenants.NAME]",
)
SECRET = {"[tenants.NAME]": "socket = '/run/x.sock'"}
"""What a table needs to be taken at all."""

COMPANIONS = {
    "frames_max": "frames_reserved = 0",
    "frames_reserved": "frames_max = 1024",
    "priority_default": "priority_max = 'REALTIME'",
}
"""What else must be said for the whole range of a key to be taken."""


class Row(NamedTuple):
    """A line of a table of the document."""

    key: str
    default: str
    range: str


def sections() -> dict[str, list[Row]]:
    """The tables of the document, by the heading above each."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in (ROOT / "docs" / "configuration.md").read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip("`")
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in line.replace(r"\|", "/").strip("|").split("|")]
            found.setdefault(heading, []).append(Row(cells[0].strip("`"), cells[1], cells[2]))
    return found


DOCUMENT = sections()


def known_keys(table: str) -> set[str]:
    """What the parser says it knows, when it is given a key that resembles none."""
    with pytest.raises(ConfigError) as caught:
        parse_config(f"{table}\n{SECRET.get(table, '')}\n_0_ = 1", ENVIRONMENT)
    found = re.search(r"known are (\[.*\])", str(caught.value))
    assert found, caught.value
    return set(re.findall(r"'([^']+)'", found[1]))


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_documented_and_every_documented_key_is_known(table: str) -> None:
    assert {row.key for row in DOCUMENT[table]} == known_keys(table)


def test_every_table_is_documented() -> None:
    documented = {heading.strip("[]").split(".")[0] for heading in DOCUMENT if heading[0] == "["}
    assert documented == known_keys("")


def test_the_defaults_are_as_documented() -> None:
    for table in TABLES:
        lines = [table, SECRET.get(table, "")]
        bare = parse_config("\n".join(lines), ENVIRONMENT)
        stated = [row for row in DOCUMENT[table] if re.fullmatch(r"`[^`<]+`", row.default)]
        lines += [f"{row.key} = {row.default.strip('`')}" for row in stated]
        assert parse_config("\n".join(lines), ENVIRONMENT) == bare, table
        assert stated or table == "[repository]"


def ranges() -> Iterator[tuple[str, str, float, float]]:
    for table in TABLES:
        for row in DOCUMENT[table]:
            if found := re.search(r"([\d.]+) to ([\d.]+)$", row.range):
                yield table, row.key, float(found[1]), float(found[2])


@pytest.mark.parametrize(("table", "key", "minimum", "maximum"), list(ranges()))
def test_the_ranges_are_as_documented(table: str, key: str, minimum: float, maximum: float) -> None:
    def parse(value: float) -> None:
        number = int(value) if value == int(value) else value
        lines = [table, SECRET.get(table, ""), COMPANIONS.get(key, ""), f"{key} = {number}"]
        parse_config("\n".join(lines), ENVIRONMENT)

    for value in (minimum, maximum):
        parse(value)
    below = minimum / 2 if minimum % 1 else minimum - 1
    for value in (below, maximum + 1):
        with pytest.raises(ConfigError, match=key):
            parse(value)


def test_the_manifest_is_documented() -> None:
    assert [row.key for row in DOCUMENT["model.toml"]] == [field.name for field in fields(Manifest)]
    with pytest.raises(InvalidManifest, match="unknown key 'nothing'"):
        parse_manifest(b"nothing = 1")


def test_the_export_request_is_documented() -> None:
    rows = {row.key: row.default for row in DOCUMENT["ExportRequest"]}
    made = {field.name: field for field in fields(ExportRequest)}
    assert list(rows) == list(made)
    required = {name for name, default in rows.items() if default == "required"}
    assert required == {
        name
        for name, field in made.items()
        if field.default is MISSING and field.default_factory is MISSING
    }
    assert rows["batch_max"] == f"`{made['batch_max'].default}`"


def blocks(path: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def test_the_examples_in_the_documents_are_good() -> None:
    (manifest,) = blocks("docs/configuration.md")
    assert parse_manifest(manifest.encode()).slo_ms == 30
    (readme,) = blocks("README.md")
    config = parse_config(readme, ENVIRONMENT)
    assert len(config.node.tenants) == 2


def test_the_example_for_systemd_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", str(EXAMPLE)]) == 0
    assert "unix:/run/gpumuxd/gpumuxd.sock (tenant default)" in capsys.readouterr().out
    unit = (EXAMPLE.parent / "gpumuxd.service").read_text()
    assert f"--config /etc/gpumuxd/{EXAMPLE.name}" in unit


def test_what_the_example_has_in_comments_is_good_too() -> None:
    text = re.sub(r"^#(?=[a-z\[])", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    assert len(tomllib.loads(text)["tenants"]) == 3
    config = parse_config(text, {**ENVIRONMENT, "CREDENTIALS_DIRECTORY": "/run/credentials/x"})
    assert {listener.address for listener in config.listeners if listener.tenant} == {
        "unix:/run/gpumuxd/voice.sock",
        "unix:/run/gpumuxd/operator.sock",
    }
