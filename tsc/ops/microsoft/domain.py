"""The domain of ONNX Runtime's own operators."""

MICROSOFT = "com.microsoft"
#: Those that it writes as if they were of the standard's domain.
IN_STANDARD = frozenset({"SimplifiedLayerNormalization"})
