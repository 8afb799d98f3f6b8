"""What a user of ONNX Runtime knows, over an Executable: sessions, their options, values and bindings."""
