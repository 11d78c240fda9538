"""Small networks on the CPU, run by ONNX Runtime: one thread, no output."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

FATAL = 4  # ONNX Runtime's log level; what fails raises an exception


def open_network(model: bytes) -> "InferenceSession":
    """Returns a network from the bytes of an ONNX file.

    Threads may share it; processes open their own.
    """
    # Only here: it takes 18 MB, and only processes that search for faces need it.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
