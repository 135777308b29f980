"""What a process holds, and that unused memory goes back."""

import mmap
import os
from pathlib import Path

from gpumuxd.device.process_memory import give_back_unused, resident_bytes
from gpumuxd.events import TenantChanged
from gpumuxd.units import MIB
from gpumuxd.wire.frames import ModelFailed, ModelLoaded
from tests.device.loading_rig import Rig
from tests.device.support import LoadedArtifact

SLACK_BYTES = 4 * MIB
"""The kernel counts in batches, and Python allocates beside us."""


def test_memory_is_counted_when_it_is_touched() -> None:
    before = resident_bytes()
    with mmap.mmap(-1, 64 * MIB) as anonymous:
        assert resident_bytes() - before < SLACK_BYTES, "it was only promised"
        for offset in range(0, len(anonymous), mmap.PAGESIZE):
            anonymous[offset] = 1
        assert abs(resident_bytes() - before - 64 * MIB) < SLACK_BYTES
    assert abs(resident_bytes() - before) < SLACK_BYTES


def test_files_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * MIB))
    before = resident_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0
        assert resident_bytes() - before < SLACK_BYTES


def test_gaps_go_back() -> None:
    """Blocks too small to be mapped singly, every other one of them freed but not those at the
    end: malloc alone would keep all of it."""
    give_back_unused()
    blocks = [bytes(24 * 1024) for _ in range(4096)]  # in gaps of earlier tests, some of them
    full = resident_bytes()
    kept = blocks[::2]
    del blocks
    give_back_unused()
    assert resident_bytes() < full - 24 * MIB
    assert len(kept) == 2048


def test_a_tenants_limit_is_asked_before_weights_are_brought_in(mlp: LoadedArtifact) -> None:
    """Both for what the models of that tenant hold already, and for no other tenant."""
    rig = Rig()
    limit = os.fstat(mlp.weights_fd).st_size * 3 // 2
    rig.scheduler.handle(TenantChanged("a", memory_bytes_max=limit), 0)
    rig.scheduler.handle(TenantChanged("b", memory_bytes_max=limit), 0)
    for model, tenant in (("m/1", "a"), ("m/2", "a"), ("m/3", "b"), ("m/4", "")):
        rig.load(mlp, model, tenant)
        rig.until(lambda: not rig.loading.is_loading and not rig.loading.is_runnable)
    first, second, third, fourth = rig.told
    assert isinstance(first, ModelLoaded), first
    assert isinstance(second, ModelFailed), second
    assert second.is_out_of_memory
    assert "tenant 'a' has " in second.reason
    assert isinstance(third, ModelLoaded), third
    assert isinstance(fourth, ModelLoaded), fourth
