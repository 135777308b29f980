"""Steps of sequences against the spec of their model: what they send, and what is kept."""

import pytest

from gpumuxd.errors import InvalidRequest
from gpumuxd.models.sequence_policy import SequencePolicy, StatePair
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.node.api import InferCall, InputTensor, SequenceStep, Tenant
from gpumuxd.node.validation import CallChecker
from gpumuxd.wire.frames import StateTensor

ROWS = ("batch",)
SPEC = ModelSpec(
    inputs=(
        TensorSpec("state", "FP32", (2, ROWS, 3)),
        TensorSpec("x", "INT32", (ROWS, 2)),
        TensorSpec("age", "INT64", ()),
    ),
    outputs=(
        TensorSpec("y", "INT32", (ROWS, 2)),
        TensorSpec("age_next", "INT64", ()),
        TensorSpec("state_next", "FP32", (2, ROWS, 3)),
    ),
    symbols=(Symbol("batch", 1, 8),),
    batch_symbol="batch",
)
POLICY = SequencePolicy((StatePair("state", "state_next"), StatePair("age", "age_next")))

X = InputTensor("x", "INT32", (4, 2), bytes(32))
STATE = InputTensor("state", "FP32", (2, 4, 3), bytes(96))
STEP = SequenceStep(5)
AGE = InputTensor("age", "INT64", (), bytes(8))


def make_call(
    *inputs: InputTensor, wanted: tuple[str, ...] = (), step: SequenceStep | None = STEP
) -> InferCall:
    return InferCall(Tenant("t"), "m", "", 0, None, 0, inputs, wanted, sequence=step)


def test_a_step_sends_the_rest_and_is_told_the_rest() -> None:
    fit, data = CallChecker(SPEC, None, POLICY).check(make_call(X))
    assert data == (X.data,)
    assert [(tensor.spec.name, tensor.shape) for tensor in fit.inputs] == [("x", (4, 2))]
    assert [(tensor.spec.name, tensor.shape) for tensor in fit.outputs] == [("y", (4, 2))]
    assert fit.wanted == (0,)
    assert (fit.rows, fit.bucket, fit.input_bytes, fit.output_bytes) == (4, (4,), 32, 32)
    assert fit.states == (
        StateTensor(0, 2, "FP32", (2, 4, 3)),
        StateTensor(2, 1, "INT64", ()),
    )


def test_what_is_kept_is_told_if_it_is_asked_for() -> None:
    call = make_call(X, wanted=("state_next", "y"))
    fit, _ = CallChecker(SPEC, None, POLICY).check(call)
    assert [tensor.spec.name for tensor in fit.outputs] == ["y", "state_next"]
    assert fit.wanted == (1, 0)
    assert [state.is_told for state in fit.states] == [True, False]


def test_a_request_of_no_sequence_sends_and_is_told_everything() -> None:
    checker = CallChecker(SPEC, None, POLICY)
    checker.check(make_call(X))
    fit, data = checker.check(make_call(X, AGE, STATE, step=None))
    assert data == (STATE.data, X.data, AGE.data)
    assert [tensor.spec.name for tensor in fit.outputs] == ["y", "age_next", "state_next"]
    assert fit.states == ()
    with pytest.raises(InvalidRequest, match=r"missing input \['state', 'age'\]"):
        checker.check(make_call(X, step=None))


def test_the_forms_of_steps_and_of_other_requests_are_not_mixed_up() -> None:
    checker = CallChecker(SPEC, None, POLICY)
    with pytest.raises(InvalidRequest, match="missing input"):
        checker.check(make_call(X, step=None))
    assert checker.check(make_call(X)).fit.states
    with pytest.raises(InvalidRequest, match="missing input"):
        checker.check(make_call(X, step=None))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (make_call(X, STATE), "input 'state' is kept by the sequence; leave it out"),
        (make_call(), r"missing input \['x'\]"),
        (make_call(X, wanted=("z",)), "unknown output 'z'"),
    ],
)
def test_a_bad_step_is_refused(call: InferCall, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        CallChecker(SPEC, None, POLICY).check(call)


def test_a_model_that_keeps_nothing_has_no_steps() -> None:
    with pytest.raises(InvalidRequest, match=r"model 'm' keeps nothing .* no \[sequence\]"):
        CallChecker(SPEC).check(make_call(X, AGE, STATE))


def test_the_limit_of_rows_holds_for_steps() -> None:
    with pytest.raises(InvalidRequest, match="at most 3 rows in a request, got 4"):
        CallChecker(SPEC, 3, POLICY).check(make_call(X))
