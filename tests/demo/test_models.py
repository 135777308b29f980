"""The demo's models compute what the packages' own models compute, over real audio and text."""

import numpy as np
import pytest
import torch
from transformers import BertModel

from gpumuxd.demo.minilm import MiniLm, SentenceTokenizer, load_minilm
from gpumuxd.demo.silero import (
    FRAME_SAMPLES,
    STATE_SHAPE,
    SileroVad,
    frames_of,
    load_silero,
    weights_path,
)
from gpumuxd.demo.speech import Speaker

TOLERANCE = 1e-6
"""The same kernels in the same order: equal bit for bit where this was written. Another build of
torch may fuse the TorchScript model, so the test allows for rounding."""

JIT_NAMES = {
    "stft_conv.weight": "stft.forward_basis_buffer",
    "final_conv.weight": "decoder.decoder.2.weight",
    "final_conv.bias": "decoder.decoder.2.bias",
}
for _kind in ("weight", "bias"):
    JIT_NAMES |= {f"conv{i}.{_kind}": f"encoder.{i - 1}.reparam_conv.{_kind}" for i in range(1, 5)}
    JIT_NAMES |= {f"lstm_cell.{_kind}_{g}": f"decoder.rnn.{_kind}_{g}" for g in ("ih", "hh")}


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    return Speaker().speak("Please turn on the lights in the kitchen.")


@pytest.fixture
def package_model() -> torch.jit.ScriptModule:
    with pytest.warns(DeprecationWarning, match="torch.jit.load"):
        return torch.jit.load(str(weights_path("silero_vad", "data", "silero_vad.jit")))


def probabilities(model: SileroVad, audio: np.ndarray) -> np.ndarray:
    state = torch.zeros(1, *STATE_SHAPE)
    found = []
    with torch.inference_mode():
        for frame in frames_of(audio):
            probability, state = model(torch.from_numpy(frame)[None], state)
            found.append(probability.item())
    return np.array(found)


def package_probabilities(model: torch.jit.ScriptModule, audio: np.ndarray) -> np.ndarray:
    model.reset_states()
    padded = np.pad(audio, (0, -audio.size % FRAME_SAMPLES))
    with torch.no_grad():
        return np.array(
            [
                model(torch.from_numpy(frame)[None], 16_000).item()
                for frame in padded.reshape(-1, FRAME_SAMPLES)
            ]
        )


def test_silero_with_the_weights_of_the_package_model_equals_it(
    audio: np.ndarray, package_model: torch.jit.ScriptModule
) -> None:
    theirs = package_model._model.state_dict()
    model = SileroVad().eval()
    model.load_state_dict({name: theirs[jit_name] for name, jit_name in JIT_NAMES.items()})
    expected = package_probabilities(package_model, audio)
    assert expected.max() > 0.9
    np.testing.assert_allclose(probabilities(model, audio), expected, rtol=0, atol=TOLERANCE)


def test_the_package_model_with_the_safetensors_weights_equals_silero(
    audio: np.ndarray, package_model: torch.jit.ScriptModule
) -> None:
    model = load_silero()
    theirs = package_model._model.state_dict()
    for name, weights in model.state_dict().items():
        theirs[JIT_NAMES[name]].copy_(weights)
    expected = package_probabilities(package_model, audio)
    assert expected.max() > 0.9
    np.testing.assert_allclose(probabilities(model, audio), expected, rtol=0, atol=TOLERANCE)


def test_rows_of_a_batch_are_streams_of_their_own(audio: np.ndarray) -> None:
    model = load_silero()
    frames = torch.from_numpy(frames_of(audio)[10:13])
    state = torch.randn(3, *STATE_SHAPE)
    with torch.inference_mode():
        together, states = model(frames, state)
        for row in range(3):
            alone, state_alone = model(frames[row : row + 1], state[row : row + 1])
            torch.testing.assert_close(together[row : row + 1], alone)
            torch.testing.assert_close(states[row : row + 1], state_alone)


def test_frames_carry_the_end_of_the_frame_before() -> None:
    frames = frames_of(np.arange(1, 1200, dtype=np.float32))
    assert frames.shape == (3, 576)
    assert not frames[0, :64].any()
    np.testing.assert_array_equal(frames[1, :64], frames[0, -64:])
    assert frames[2, 64 + 1199 - 1024 - 1] == 1199
    assert not frames[2, 64 + 1199 - 1024 :].any()


@pytest.fixture(scope="module")
def minilm() -> MiniLm:
    return load_minilm()


SENTENCES = ["A man is eating food.", "A man eats a meal.", "The market fell by three percent."]


def test_minilm_equals_transformers_with_mean_pooling(minilm: MiniLm) -> None:
    token_ids, mask = map(torch.from_numpy, SentenceTokenizer().encode(SENTENCES))
    assert not mask.all(), "one sentence should be shorter, so that the mask matters"
    bert: BertModel = minilm.bert
    with torch.inference_mode():
        hidden = bert(input_ids=token_ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).float()
        expected = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)
        found = minilm(token_ids, mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_close_sentences_score_above_distant_ones(minilm: MiniLm) -> None:
    token_ids, mask = map(torch.from_numpy, SentenceTokenizer().encode(SENTENCES))
    with torch.inference_mode():
        score = minilm(token_ids, mask) @ minilm(token_ids, mask).T
    torch.testing.assert_close(score.diagonal(), torch.ones(3))
    assert score[0, 1] > 0.7 > 0.3 > score[0, 2]


def test_padding_to_a_length_changes_nothing(minilm: MiniLm) -> None:
    tokenizer = SentenceTokenizer()
    short = tokenizer.encode(SENTENCES[:1])
    padded = tokenizer.encode(SENTENCES[:1], length=64)
    assert padded[0].shape == padded[1].shape == (1, 64)
    with torch.inference_mode():
        torch.testing.assert_close(
            minilm(*map(torch.from_numpy, short)), minilm(*map(torch.from_numpy, padded))
        )
