"""An ONNX model in a running daemon, asked by the stock client."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from gpumuxd.programs.export_onnx import export_onnx
from gpumuxd.testing.zoo.onnx_models import REAL, example
from tests.daemon.harness import Daemon, Site
from tests.onnx.support import largest_difference, read, whole


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    directory = Path(tempfile.mkdtemp(prefix="gm-", dir="/tmp"))
    real = REAL["cls"]
    export_onnx(real.path(), directory / "repository" / "cls" / "1" / "model.onnx", real.request)
    (directory / "repository" / "bad" / "1").mkdir(parents=True)
    (directory / "repository" / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    yield Site(directory, directory / "repository", startup_models=["cls"])
    shutil.rmtree(directory)


def test_a_real_model_is_served_to_the_stock_client(site: Site) -> None:
    data = (site.directory / "repository" / "cls" / "1" / "model.onnx").read_bytes()
    plan = read(data).plan
    (x,) = example(plan.spec, plan.fills, (2,))
    (expected,) = whole(data, plan.spec, [x])
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        with triton.InferenceServerClient(site.target) as client:
            metadata = client.get_model_metadata("cls")
            assert metadata.platform == "onnxruntime_onnx"
            config = client.get_model_config("cls").config
            assert config.platform == "onnxruntime_onnx"
            assert config.default_model_filename == "model.onnx"
            asked = triton.InferInput("x", list(x.shape), "FP32")
            asked.set_data_from_numpy(x)
            for _ in range(3):
                result = client.infer("cls", [asked])
                got = result.as_numpy(metadata.outputs[0].name)
                assert largest_difference([got], [expected]) == 0
            assert np.isfinite(got).all()
            with pytest.raises(Exception, match="not an ONNX model"):
                client.load_model("bad")
            assert client.is_model_ready("cls")
