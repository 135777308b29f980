"""What a manifest may say of sequences, and which models it fits."""

import pytest

from gpumuxd.errors import InvalidManifest
from gpumuxd.models.manifest import parse_manifest
from gpumuxd.models.sequence_policy import SequencePolicy, StatePair
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.units import NS_PER_S

PAIR = '{ input = "state", output = "next" }'


def test_pairs_and_a_limit() -> None:
    policy = parse_manifest(f"[sequence]\nstate = [{PAIR}]\nidle_s_max = 1.5".encode()).sequence
    assert policy == SequencePolicy((StatePair("state", "next"),), 1.5)
    assert policy.idle_ns_max == 3 * NS_PER_S // 2
    assert policy.inputs == ("state",)
    assert policy.outputs == ("next",)


def test_what_is_not_said_has_a_default() -> None:
    policy = parse_manifest(f"sequence = {{ state = [{PAIR}] }}".encode()).sequence
    assert policy is not None
    assert policy.idle_s_max == 60
    assert parse_manifest(b"").sequence is None


@pytest.mark.parametrize(
    "text",
    [
        "sequence = 5",
        "[sequence]",
        "[sequence]\nstate = []",
        '[sequence]\nstate = ["state"]',
        '[sequence]\nstate = [{ input = "state" }]',
        '[sequence]\nstate = [{ input = "state", output = 5 }]',
        '[sequence]\nstate = [{ input = "state", output = "next", type = "x" }]',
        f'[sequence]\nstate = [{PAIR}, {{ input = "state", output = "other" }}]',
        f'[sequence]\nstate = [{PAIR}, {{ input = "other", output = "next" }}]',
        f"[sequence]\nstate = [{PAIR}]\nidle_s_max = 0",
        f"[sequence]\nstate = [{PAIR}]\nidle_s_max = nan",
        f"[sequence]\nstate = [{PAIR}]\nidle_s_max = true",
        f"[sequence]\nstate = [{PAIR}]\nidle_s_max = 86401",
        f"[sequence]\nstate = [{', '.join([PAIR] * 65)}]",
    ],
)
def test_anything_else_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(InvalidManifest, match="sequence: expected a table"):
        parse_manifest(text.encode())


def spec(**shapes: tuple[object, ...]) -> ModelSpec:
    """Inputs x and state, outputs y and next; batch first unless said otherwise."""
    rows = ("batch",)

    def tensor(name: str, datatype: str = "FP32") -> TensorSpec:
        return TensorSpec(name, datatype, shapes.get(name, (rows, 4)))  # type: ignore[arg-type]

    symbols = (Symbol("batch", 1, 8), *((Symbol("n", 1, 8),) if "state" in shapes else ()))
    return ModelSpec(
        (tensor("x"), tensor("state")), (tensor("y"), tensor("next")), symbols, "batch"
    )


def test_a_model_that_fits() -> None:
    SequencePolicy((StatePair("state", "next"),)).check(spec())


@pytest.mark.parametrize(
    ("policy", "model", "message"),
    [
        (("no", "next"), spec(), r"has no input 'no', it has \['x', 'state'\]"),
        (("state", "no"), spec(), r"has no output 'no', it has \['y', 'next'\]"),
        (("state", "next"), spec(next=(("batch",), 5)), "'state' FP32 .batch, 4. and 'next'"),
        (("state", "next"), spec(state=(("n",), 4), next=(("n",), 4)), "has dimension 'n'"),
    ],
)
def test_a_model_that_does_not(policy: tuple[str, str], model: ModelSpec, message: str) -> None:
    with pytest.raises(InvalidManifest, match=message):
        SequencePolicy((StatePair(*policy),)).check(model)
