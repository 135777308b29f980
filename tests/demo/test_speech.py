"""The demo's speech is speech to the detector, and its silence is not."""

import numpy as np
import pytest
import torch

from gpumuxd.demo.silero import STATE_SHAPE, frames_of, load_silero, weights_path
from gpumuxd.demo.speech import Speaker, resample, utterances


def test_speech_probability_is_high_on_voice_and_low_on_silence() -> None:
    model = load_silero()
    means: dict[bool, list[float]] = {True: [], False: []}
    for is_speech, samples in utterances():
        state = torch.zeros(1, *STATE_SHAPE)
        found = []
        with torch.inference_mode():
            for frame in frames_of(samples):
                probability, state = model(torch.from_numpy(frame)[None], state)
                found.append(probability.item())
        means[is_speech].append(float(np.mean(found)))
    assert min(means[True]) > 0.8
    assert max(means[False]) < 0.2


def test_a_longer_sentence_takes_longer_and_stays_within_full_scale() -> None:
    speaker = Speaker()
    short, long = speaker.speak("One."), speaker.speak("One, two, three, four, five.")
    assert 0.2 < short.size / 16_000 < 1.5 < long.size / 16_000 < 5
    for samples in (short, long):
        assert samples.dtype == np.float32
        assert 0.1 < np.abs(samples).max() <= 1


def test_an_unknown_voice_is_refused() -> None:
    with pytest.raises(ValueError, match="no voice 'klingon-x'"):
        Speaker("klingon-x")


def test_resample_keeps_a_tone() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(22_050) / 22_050).astype(np.float32)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(resample(tone, 22_050, 16_000), expected, atol=0.01)


def test_a_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"no_such_package.*make setup"):
        weights_path("no_such_package", "file")
