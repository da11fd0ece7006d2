"""What the tests of the ONNX frontend share."""
