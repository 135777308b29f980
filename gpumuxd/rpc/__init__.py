"""The front door: the Open Inference Protocol over gRPC. gRPC is named nowhere else."""
