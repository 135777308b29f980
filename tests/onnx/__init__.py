"""ONNX models: read, refused, exported, cut, run and served."""
