"""Why a model is cut as it is, as protobuf. It must not know how the explanation came to be."""

from gpumuxd.node.api import ExplanationView
from gpumuxd.rpc.detail_codec import encode_bound, encode_group
from gpumuxd.rpc.generated import control_pb2 as pb


def encode_explanation(view: ExplanationView) -> pb.ExplainModelResponse:
    """What is absent is None in the view."""
    return pb.ExplainModelResponse(
        name=view.name,
        version=view.version,
        device=view.device,
        sizes=[pb.SizeDetail(name=name, size=size) for name, size in view.sizes],
        inputs=[
            pb.SizedTensor(name=each.name, datatype=each.datatype, shape=each.shape)
            for each in view.inputs
        ],
        priority_class=view.priority_class.name,
        mode=view.mode,
        reason=view.reason,
        bound=encode_bound(view.bound),
        group_count=view.group_count,
        group_ns=view.group_ns,
        run_ns=view.run_ns,
        slice_count=view.slice_count,
        slices=[
            pb.SliceDetail(
                first_group=each.first_group,
                end_group=each.end_group,
                predicted_ns=each.predicted_ns,
            )
            for each in view.slices
        ],
        window=view.window,
        slice_ns=view.slice_ns,
        floor=None if view.floor is None else encode_group(view.floor),
        is_floor_over_bound=view.is_floor_over_bound,
        exec_ns=view.exec_ns,
        preempt_ns=view.preempt_ns,
        preempt_expected_ns=view.preempt_expected_ns,
        is_guess=view.is_guess,
        is_cost_doubtful=view.is_cost_doubtful,
    )
