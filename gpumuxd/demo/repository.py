"""The demo's model repository: both models exported, each with its owner's policy beside it.

<root>/vad/model.toml      tenant voice, 32 ms to answer
<root>/vad/1/model.pt2
<root>/minilm/model.toml   tenant search, whenever there is time
<root>/minilm/1/model.pt2
"""

from pathlib import Path

import numpy as np
import torch

from gpumuxd.demo.minilm import SEQUENCE_MAX, MiniLm, SentenceTokenizer
from gpumuxd.demo.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, STATE_SHAPE, SileroVad
from gpumuxd.programs.exporter import export_model

VAD = "vad"
MINILM = "minilm"

SEQUENCE = 64
"""Length that sentences are padded to, and the one that the profiler measures."""

_VAD_MANIFEST = """\
# A frame comes every 32 ms, and its answer has to be there before the next one.
slo_ms = 32
tenants = ["voice"]
"""

_MINILM_MANIFEST = """\
tenants = ["search"]
priority_max = "BEST_EFFORT"
"""


def write_repository(root: Path, vad: SileroVad, minilm: MiniLm) -> None:
    """Export both models below `root`."""
    export_model(
        vad,
        {
            "audio": torch.zeros(2, CONTEXT_SAMPLES + FRAME_SAMPLES),
            "state": torch.zeros(2, *STATE_SHAPE),
        },
        root / VAD / "1" / "model.pt2",
        output_names=("probability", "next_state"),
    )
    (root / VAD / "model.toml").write_text(_VAD_MANIFEST)
    token_ids, mask = SentenceTokenizer().encode(["two", "sentences"], SEQUENCE)
    dimensions = {0: "batch", 1: "sequence"}
    export_model(
        minilm,
        {"token_ids": torch.from_numpy(token_ids), "mask": torch.from_numpy(mask)},
        root / MINILM / "1" / "model.pt2",
        dynamic={"token_ids": dimensions, "mask": dimensions},
        sizes={"sequence": (1, SEQUENCE_MAX)},
        output_names=("embedding",),
    )
    (root / MINILM / "model.toml").write_text(_MINILM_MANIFEST)


def initial_state() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The state of a stream that has heard nothing."""
    return np.zeros((1, *STATE_SHAPE), dtype=np.float32)
