"""Load a model, say what it takes, run it on zeros and say what happened.

python examples/infer.py 127.0.0.1:8001 minilm
"""

import sys

import numpy as np
from gpumuxd_client import Client, TensorMetadata, errors
from gpumuxd_client.codec import dtype_of
from numpy.typing import NDArray


def zeros(tensor: TensorMetadata) -> NDArray[np.generic]:
    """An array that fits; 1 where the size may vary."""
    shape = [size if size >= 0 else 1 for size in tensor.shape]
    return np.zeros(shape, dtype_of(tensor.datatype))


def main(target: str, model: str) -> int:
    """Exit status 1 when the daemon refuses."""
    with Client(target) as client:
        try:
            client.load(model, deadline=120)
            metadata = client.model_metadata(model)
            for tensor in (*metadata.inputs, *metadata.outputs):
                print(tensor.name, tensor.datatype, list(tensor.shape))
            inputs = {tensor.name: zeros(tensor) for tensor in metadata.inputs}
            result = client.infer(model, inputs, priority=2, deadline=5)
        except errors.GpumuxdError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    for name, array in result.items():
        print(name, array.dtype, array.shape)
    print(result.report)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
