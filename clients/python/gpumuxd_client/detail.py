"""What is told of a model, from its messages. What the fields mean is in `types.py`."""

from collections.abc import Iterable

from gpumuxd_client import types
from gpumuxd_client.generated import control_pb2 as pb


def decode_model_detail(data: bytes) -> types.ModelDetail:
    response = pb.ModelDetailResponse.FromString(data)
    return types.ModelDetail(response.name, tuple(map(_version, response.versions)))


def _version(message: pb.VersionDetail) -> types.VersionDetail:
    return types.VersionDetail(
        version=message.version,
        state=message.state,
        reason=message.reason,
        policy=_policy(message.policy) if message.HasField("policy") else None,
        loaded=_loaded(message.loaded) if message.HasField("loaded") else None,
    )


def _policy(message: pb.PolicyDetail) -> types.PolicyDetail:
    return types.PolicyDetail(
        tenants=None if message.for_everyone else tuple(message.tenants),
        class_max=message.class_max,
        slo_ns=message.slo_ns if message.HasField("slo_ns") else None,
        device=message.device if message.HasField("device") else None,
        batch_max=message.batch_max if message.HasField("batch_max") else None,
        versions=message.versions,
        replicas=message.replicas,
    )


def _loaded(message: pb.LoadedDetail) -> types.LoadedDetail:
    return types.LoadedDetail(
        platform=message.platform,
        device=message.device,
        artifact_hash=message.artifact_hash,
        inputs=_tensors(message.inputs),
        outputs=_tensors(message.outputs),
        dimensions=tuple(
            types.DimensionDetail(
                each.name, each.minimum, each.maximum, each.multiple, each.is_batch
            )
            for each in message.dimensions
        ),
        batch_max=message.batch_max,
        parameter_count=message.parameter_count,
        weights_bytes=message.weights_bytes,
        frame_bytes=message.frame_bytes,
        group_count=message.group_count,
        buckets=tuple(map(_bucket, message.buckets)),
        bound=_bound(message.bound),
        is_preemptible=message.preemptible if message.HasField("preemptible") else None,
        verdict=message.verdict,
        advice=message.advice,
        notes=tuple(message.notes),
        replicas=tuple(message.replicas),
    )


def _tensors(messages: Iterable[pb.TensorDetail]) -> tuple[types.TensorDetail, ...]:
    return tuple(types.TensorDetail(t.name, t.datatype, tuple(t.shape)) for t in messages)


def _bucket(message: pb.BucketDetail) -> types.BucketDetail:
    return types.BucketDetail(
        sizes=tuple(message.sizes),
        run_ns=message.run_ns,
        longest=_group(message.longest) if message.HasField("longest") else None,
        beyond_count=message.beyond_count,
        has_more_beyond=message.has_more_beyond,
        is_allowed=message.is_allowed,
    )


def _bound(message: pb.BoundDetail) -> types.BoundDetail:
    bound_ns = message.bound_ns if message.HasField("bound_ns") else None
    return types.BoundDetail(bound_ns, message.origin, message.model)


def _group(message: pb.GroupDetail) -> types.GroupDetail:
    return types.GroupDetail(message.group, message.device_ns, message.first_node, message.end_node)


def decode_explanation(data: bytes) -> types.Explanation:
    response = pb.ExplainModelResponse.FromString(data)
    return types.Explanation(
        name=response.name,
        version=response.version,
        device=response.device,
        sizes={each.name: each.size for each in response.sizes},
        inputs=tuple(
            types.SizedTensor(each.name, each.datatype, tuple(each.shape))
            for each in response.inputs
        ),
        priority_class=response.priority_class,
        mode=response.mode,
        reason=response.reason,
        bound=_bound(response.bound),
        group_count=response.group_count,
        group_ns=tuple(response.group_ns),
        run_ns=response.run_ns,
        slice_count=response.slice_count,
        slices=tuple(
            types.SliceDetail(each.first_group, each.end_group, each.predicted_ns)
            for each in response.slices
        ),
        window=response.window,
        slice_ns=response.slice_ns,
        floor=_group(response.floor) if response.HasField("floor") else None,
        is_floor_over_bound=response.is_floor_over_bound,
        exec_ns=response.exec_ns,
        preempt_ns=response.preempt_ns,
        preempt_expected_ns=response.preempt_expected_ns,
        is_guess=response.is_guess,
        is_cost_doubtful=response.is_cost_doubtful,
    )
