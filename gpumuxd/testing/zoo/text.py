"""Models of text, and a recommender: encoders, a decoder whole and by the step, embedding bags.

The networks are those of transformers, made from configurations; only what wraps them is ours: an
export takes and gives plain tensors. Full sizes are the published base model's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from gpumuxd.demo.minilm import SEQUENCE_MAX, load_minilm
from gpumuxd.programs.exporter import ExportRequest
from gpumuxd.testing.zoo.catalogue import Architecture, Scale

_VOCABULARY = 64
"""Words that small models know, and that inputs of both scales use."""

_LENGTH_MAX = 48

_TOKENS = {0: "batch", 1: "length"}

_SIZES: Sequence[Mapping[str, int]] = (
    {"batch": 1, "length": 1},
    {"batch": 3, "length": 7},
    {"batch": 2, "length": _LENGTH_MAX},
)

_NARROW = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
"""What most configurations of transformers call the same. Two layers only where they share."""


class Encoder(nn.Module):
    """(input_ids, attention_mask [batch, length]) -> the tensors named, in this order."""

    def __init__(self, model: nn.Module, outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._outputs = tuple(outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        result = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return {name: getattr(result, name) for name in self._outputs}


Make = Callable[[Any], nn.Module]
Configure = Callable[..., Any]


def _encoder(
    name: str,
    model: Make,
    configure: Configure,
    small: Mapping[str, Any],
    full: Mapping[str, Any],
    outputs: Sequence[str] = ("last_hidden_state",),
    attention: str = "sdpa",
) -> Architecture:
    def make(scale: Scale) -> ExportRequest:
        torch.manual_seed(1)
        given = small if scale is Scale.SMALL else full
        # Transformers has no annotations that mypy could follow from a configuration to its model.
        config = configure(**given, attn_implementation=attention)
        return ExportRequest(
            module=Encoder(model(config), outputs),
            example_inputs={
                "input_ids": torch.randint(0, _VOCABULARY, (2, 6)),
                "attention_mask": torch.ones(2, 6, dtype=torch.long),
            },
            dynamic={"input_ids": _TOKENS, "attention_mask": _TOKENS},
            sizes={"length": (1, _LENGTH_MAX)},
        )

    return Architecture(name, "text", make, _SIZES, {"input_ids": _VOCABULARY})


_BOTH = ("last_hidden_state", "pooler_output")

_DEBERTA = {
    "relative_attention": True,
    "position_buckets": 256,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
}
"""DeBERTa v3: its weights follow the second version's code."""

_ENCODERS = (
    _encoder("bert", hf.BertModel, hf.BertConfig, _NARROW, {}, _BOTH),
    _encoder("bert-eager", hf.BertModel, hf.BertConfig, _NARROW, {}, _BOTH, "eager"),
    _encoder(
        "distilbert",
        hf.DistilBertModel,
        hf.DistilBertConfig,
        {"vocab_size": _VOCABULARY, "dim": 32, "hidden_dim": 48, "n_layers": 1, "n_heads": 4},
        {},
    ),
    _encoder(
        "roberta",
        hf.RobertaModel,
        hf.RobertaConfig,
        _NARROW,
        {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1},
        _BOTH,
    ),
    _encoder(
        "albert",
        hf.AlbertModel,
        hf.AlbertConfig,
        {**_NARROW, "num_hidden_layers": 2, "embedding_size": 16},
        {
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
        _BOTH,
    ),
    _encoder(
        "deberta",
        hf.DebertaV2Model,
        hf.DebertaV2Config,
        {**_NARROW, **_DEBERTA, "position_buckets": 8},
        {
            **_DEBERTA,
            "vocab_size": 128_100,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
        },
        attention="eager",
    ),
    _encoder(
        "t5-encoder",
        hf.T5EncoderModel,
        hf.T5Config,
        {
            "vocab_size": _VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 16,
        },
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
        attention="eager",
    ),
    _encoder(
        "gpt2",
        hf.GPT2Model,
        hf.GPT2Config,
        {
            "vocab_size": _VOCABULARY,
            "n_embd": 32,
            "n_layer": 1,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "use_cache": False,
        },
        {"use_cache": False},
    ),
    _encoder(
        "clip-text",
        hf.CLIPTextModel,
        hf.CLIPTextConfig,
        {**_NARROW, "bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0},
        {},
        _BOTH,
    ),
)


def _grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **_: Any
) -> tuple[Tensor, None]:
    """One query a sequence, which sees all before it, so there is no mask to make.

    Transformers' own repeats each key for its group of queries, which torch.export can't trace for
    every length of the past.
    """
    del module, mask
    attended = nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    return attended.transpose(1, 2), None


hf.AttentionInterface.register("gpumuxd_grouped", _grouped_attention)


class DecoderStep(nn.Module):
    """One token of each sequence and the keys and values before it -> logits, and those with it.

    `past` is a key and a value [batch, heads, past, width] for each layer in turn, so the server
    keeps no state between steps.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache: Any = hf.DynamicCache()  # transformers has not annotated its layers
        for key, value in zip(past[::2], past[1::2], strict=True):
            # Not by `update`, which would join the first one with nothing.
            layer: Any = cache.layer_class_to_replicate()
            layer.keys, layer.values, layer.is_initialized = key, value, True
            cache.layers.append(layer)
        result = self.model(input_ids=token_ids, past_key_values=cache, use_cache=True)
        present = [t for layer in cache.layers for t in (layer.keys, layer.values)]
        return (result.logits, *present)


def _llama_step(scale: Scale) -> ExportRequest:
    torch.manual_seed(2)
    small: dict[str, Any] = {
        **_NARROW,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    # SmolLM-135M: the Llama network at a size for the edge.
    full: dict[str, Any] = {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "intermediate_size": 1536,
        "max_position_embeddings": 2048,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    }
    given = small if scale is Scale.SMALL else full
    configure: Configure = hf.LlamaConfig
    config = configure(**given, attn_implementation="gpumuxd_grouped")
    width = given["hidden_size"] // given["num_attention_heads"]
    shape = (2, given["num_key_value_heads"], 5, width)
    names = [f"{part}_{i}" for i in range(given["num_hidden_layers"]) for part in ("key", "value")]
    inputs = {"token_ids": torch.randint(0, _VOCABULARY, (2, 1))}
    return ExportRequest(
        module=DecoderStep(hf.LlamaForCausalLM(config)),
        example_inputs=inputs | {name: torch.randn(shape) for name in names},
        dynamic={"token_ids": {0: "batch"}} | {name: {0: "batch", 2: "past"} for name in names},
        sizes={"past": (1, 1024)},
        output_names=("logits", *(f"next_{name}" for name in names)),
    )


class Recommender(nn.Module):
    """DLRM: dense features, and bags of categories of which some rows count more than others."""

    def __init__(self, categories: int, tables: int, width: int) -> None:
        super().__init__()
        modes = ("sum", "mean", "max")
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(categories, width, mode=modes[i % 3], padding_idx=0 if i == 1 else None)
            for i in range(tables)
        )
        self.weighted = nn.EmbeddingBag(categories, width, mode="sum")
        self.bottom = nn.Sequential(
            nn.Linear(13, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        count = tables + 2
        self.top = nn.Sequential(
            nn.Linear(width + count * (count - 1) // 2, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, 1),
        )
        self.pairs = nn.Buffer(torch.tril_indices(count, count, offset=-1), persistent=False)

    def forward(self, dense: Tensor, categories: Tensor, weights: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        batch, _, count = categories.shape
        # Offsets are made here: those that an EmbeddingBag makes of rows need two rows at least.
        offsets = torch.arange(batch) * count
        flat = [ids.flatten() for ids in categories.unbind(1)]
        rows = [bottom, self.weighted(flat[0], offsets, weights.flatten())]
        rows += [bag(flat[i], offsets) for i, bag in enumerate(self.bags)]
        stacked = torch.stack(rows, dim=1)
        products = (stacked @ stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([bottom, products], dim=1)))


def _recommender(scale: Scale) -> ExportRequest:
    torch.manual_seed(3)
    categories, tables, width = (_VOCABULARY, 3, 8) if scale is Scale.SMALL else (10_000, 26, 64)
    return ExportRequest(
        module=Recommender(categories, tables, width),
        example_inputs={
            "dense": torch.randn(2, 13),
            "categories": torch.randint(0, _VOCABULARY, (2, tables, 4)),
            "weights": torch.rand(2, 4),
        },
        dynamic={
            "dense": {0: "batch"},
            "categories": {0: "batch", 2: "bag"},
            "weights": {0: "batch", 1: "bag"},
        },
        sizes={"bag": (1, 32)},
    )


def _minilm(scale: Scale) -> ExportRequest:
    """The weights are real, so there is one size."""
    del scale
    return ExportRequest(
        module=load_minilm(),
        example_inputs={
            "token_ids": torch.randint(0, _VOCABULARY, (2, 6)),
            "mask": torch.ones(2, 6, dtype=torch.long),
        },
        dynamic={"token_ids": _TOKENS, "mask": _TOKENS},
        sizes={"length": (1, SEQUENCE_MAX)},
    )


ARCHITECTURES: Sequence[Architecture] = (
    *_ENCODERS,
    Architecture(
        "llama-step",
        "text",
        _llama_step,
        ({"batch": 1, "past": 1}, {"batch": 3, "past": 9}, {"batch": 2, "past": 64}),
        {"token_ids": _VOCABULARY},
    ),
    Architecture(
        "recommender",
        "tabular",
        _recommender,
        ({"batch": 1, "bag": 1}, {"batch": 5, "bag": 3}, {"batch": 64, "bag": 32}),
        {"categories": _VOCABULARY},
    ),
    Architecture(
        "minilm",
        "text",
        _minilm,
        ({"batch": 1, "length": 1}, {"batch": 3, "length": 7}),
        {"token_ids": 30_000},
    ),
)
