"""Small networks on the CPU, run by ONNX Runtime: one thread, no output."""

import onnxruntime

FATAL = 4  # ONNX Runtime's log level; what fails raises an exception


def open_network(model: bytes) -> onnxruntime.InferenceSession:
    """Returns a network from the bytes of an ONNX file.

    Threads may share it; processes open their own.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
