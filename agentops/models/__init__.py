"""Models: weights on disk, local encoder and causal models, and the gateway to model providers.

Invariant: importing this package imports no model library; torch and ONNX Runtime load inside functions.
"""
