"""The page of a model as protobuf. It must not know how the page came to be."""

from gpumuxd.models.spec import TensorSpec, format_size
from gpumuxd.node.api import (
    BoundView,
    BucketView,
    GroupView,
    LoadedView,
    ModelDetail,
    PolicyView,
    VersionView,
)
from gpumuxd.rpc.generated import control_pb2 as pb


def encode_detail(detail: ModelDetail) -> pb.ModelDetailResponse:
    """What is absent is None in the view."""
    return pb.ModelDetailResponse(
        name=detail.name, versions=[_version(version) for version in detail.versions]
    )


def _version(view: VersionView) -> pb.VersionDetail:
    return pb.VersionDetail(
        version=view.version,
        state=view.state.value,
        reason=view.reason,
        policy=None if view.policy is None else _policy(view.policy),
        loaded=None if view.loaded is None else _loaded(view.loaded),
    )


def _policy(view: PolicyView) -> pb.PolicyDetail:
    return pb.PolicyDetail(
        for_everyone=view.tenants is None,
        tenants=view.tenants,
        class_max=view.class_max.name,
        slo_ns=view.slo_ns,
        device=view.device,
        batch_max=view.batch_max,
        versions=view.versions,
        replicas=view.replicas,
    )


def _loaded(view: LoadedView) -> pb.LoadedDetail:
    return pb.LoadedDetail(
        platform=view.platform,
        device=view.device,
        artifact_hash=view.artifact_hash,
        inputs=[_tensor(tensor) for tensor in view.spec.inputs],
        outputs=[_tensor(tensor) for tensor in view.spec.outputs],
        dimensions=[
            pb.DimensionDetail(
                name=symbol.name,
                minimum=symbol.minimum,
                maximum=symbol.maximum,
                multiple=symbol.multiple,
                is_batch=symbol.name == view.spec.batch_symbol,
            )
            for symbol in view.spec.symbols
        ],
        batch_max=view.batch_max,
        parameter_count=view.parameter_count,
        weights_bytes=view.weights_bytes,
        frame_bytes=view.frame_bytes,
        group_count=view.group_count,
        buckets=[_bucket(bucket) for bucket in view.buckets],
        bound=encode_bound(view.bound),
        preemptible=view.verdict.is_preemptible,
        replicas=view.replicas,
        verdict=view.verdict.sentence,
        advice=view.verdict.advice,
        notes=view.notes,
    )


def _tensor(tensor: TensorSpec) -> pb.TensorDetail:
    return pb.TensorDetail(
        name=tensor.name, datatype=tensor.datatype, shape=[format_size(s) for s in tensor.shape]
    )


def encode_bound(view: BoundView) -> pb.BoundDetail:
    return pb.BoundDetail(bound_ns=view.bound_ns, origin=view.origin.value, model=view.model)


def encode_group(view: GroupView) -> pb.GroupDetail:
    return pb.GroupDetail(
        group=view.group,
        device_ns=view.device_ns,
        first_node=view.first_node,
        end_node=view.end_node,
    )


def _bucket(view: BucketView) -> pb.BucketDetail:
    return pb.BucketDetail(
        sizes=view.sizes,
        run_ns=view.run_ns,
        longest=None if view.longest is None else encode_group(view.longest),
        beyond_count=view.beyond_count,
        has_more_beyond=view.has_more_beyond,
        is_allowed=view.is_allowed,
    )
