"""Deliver a finished model: bundles, ONNX, torch.export, C, and a fast runtime."""
