"""What the scheduler is told of a program when its model is ready."""

from gpumuxd.commands import Command
from gpumuxd.events import Event, ModelReady
from gpumuxd.units import NS_PER_MS, NS_PER_US
from tests.device.loading_rig import Rig
from tests.device.support import LoadedArtifact


class Listener:
    """A tap that keeps the events."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def handles(self, event: Event, now_ns: int) -> None:
        self.heard.append(event)

    def polls_fates(self, now_ns: int) -> None:
        pass

    def polls_launches(self, now_ns: int) -> None:
        pass

    def answers(self, commands: list[Command]) -> None:
        pass


def ready_of(rig: Rig, artifact: LoadedArtifact) -> ModelReady:
    """Load a model; what the scheduler hears of it."""
    listener = Listener()
    rig.scheduler.tap = listener
    rig.load(artifact)
    rig.finish()
    (ready,) = [e for e in listener.heard if isinstance(e, ModelReady) and e.model == "m/1"]
    return ready


def test_operators_and_layers_of_groups(mlp: LoadedArtifact) -> None:
    """Four linear layers with a tanh after each. Nodes take a tenth of the target each."""
    rig = Rig(lambda work: NS_PER_MS // 20 if work.model.endswith("@nodes") else NS_PER_MS // 10)
    profile = ready_of(rig, mlp).profile
    assert profile.group_count == 1
    assert profile.operators == (8,)
    assert profile.layer_ends == (1,)


def test_each_long_node_is_a_group_and_layers_end_where_the_module_has_them(
    mlp: LoadedArtifact,
) -> None:
    rig = Rig(lambda work: NS_PER_MS)
    profile = ready_of(rig, mlp).profile
    assert profile.operators == (1,) * 8
    # A tanh is the model's own and comes with the linear layer after it, the last with the end.
    assert profile.layer_ends == (1, 3, 5, 7, 8)


def test_what_piles_up_follows_from_what_a_launch_costs(mlp: LoadedArtifact) -> None:
    told = {}
    for launch_ns in (0, 100 * NS_PER_US, 10 * NS_PER_MS):
        rig = Rig(lambda work: NS_PER_MS)
        rig.loading.launch_ns = launch_ns
        told[launch_ns] = ready_of(rig, mlp).profile.outstanding_ns
    assert [set(each.values()) for each in told.values()] == [
        {8 * NS_PER_MS},
        {8 * NS_PER_MS - 7 * 100 * NS_PER_US},
        {NS_PER_MS},
    ]
