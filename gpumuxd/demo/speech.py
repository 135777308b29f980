"""Speech to detect: sentences spoken by espeak-ng, with silence between them.

espeakng-loader ships libespeak-ng and its voices in a wheel, so that no recording has to be stored
here and nothing has to be fetched; the library is called through ctypes. It keeps global state:
speak from one thread. It is licensed under the GPL and is loaded by the demo and its tests only.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpumuxd.demo.silero import SAMPLE_RATE, weights_path

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Please turn on the lights in the kitchen.",
    "What will the weather be like tomorrow morning?",
    "A camera pipeline must answer within its deadline.",
)

_AUDIO_OUTPUT_SYNCHRONOUS = 2
_CHARS_UTF8 = 1
_POS_CHARACTER = 1
_EE_OK = 0

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Speaker:
    """A voice. Make one per process and use it from one thread."""

    def __init__(self, voice: str = "en-us") -> None:
        library = ctypes.CDLL(str(weights_path("espeakng_loader", "libespeak-ng.so.1")))
        data = str(weights_path("espeakng_loader", "espeak-ng-data"))
        self._rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, data.encode(), 0)
        if self._rate <= 0:
            raise RuntimeError(f"espeak-ng found no data in {data}")
        if library.espeak_SetVoiceByName(voice.encode()) != _EE_OK:
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        self._library = library
        self._blocks: list[NDArray[np.int16]] = []
        # Kept on self: the library holds only the address.
        self._callback = _Callback(self._take)
        library.espeak_SetSynthCallback(self._callback)

    def _take(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, _: int | None) -> int:
        if samples and count > 0:
            self._blocks.append(np.ctypeslib.as_array(samples, (count,)).astype(np.int16))
        return 0

    def speak(self, sentence: str) -> NDArray[np.float32]:
        """The sentence as audio of 16 kHz, between -1 and 1."""
        self._blocks.clear()
        text = sentence.encode()
        status = self._library.espeak_Synth(
            text, ctypes.c_size_t(len(text) + 1), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None
        )
        if status != _EE_OK or not self._blocks:
            raise RuntimeError(f"espeak-ng did not speak (status {status})")
        spoken = np.concatenate(self._blocks).astype(np.float32) / np.float32(32768)
        return resample(spoken, self._rate, SAMPLE_RATE)


def resample(samples: NDArray[np.float32], rate: int, new_rate: int) -> NDArray[np.float32]:
    """Linear interpolation: what aliases lies above the band that carries speech."""
    count = samples.size * new_rate // rate
    positions = np.arange(count, dtype=np.float64) * rate / new_rate
    return np.interp(positions, np.arange(samples.size), samples).astype(np.float32)


def silence(seconds: float) -> NDArray[np.float32]:
    """A quiet room: noise 60 dB below full scale, the same every time."""
    noise = np.random.default_rng(1).standard_normal(round(seconds * SAMPLE_RATE))
    return (noise * 1e-3).astype(np.float32)


def utterances(
    sentences: Sequence[str] = SENTENCES, pause_s: float = 0.5
) -> list[tuple[bool, NDArray[np.float32]]]:
    """Pauses and sentences by turns, each with whether it is speech."""
    speaker = Speaker()
    parts: list[tuple[bool, NDArray[np.float32]]] = [(False, silence(pause_s))]
    for sentence in sentences:
        parts.append((True, speaker.speak(sentence)))
        parts.append((False, silence(pause_s)))
    return parts
