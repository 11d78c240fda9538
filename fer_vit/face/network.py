"""Opens small networks with ONNX Runtime: one thread, no messages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

FATAL = 4  # ONNX Runtime's log level; errors raise exceptions anyway
CPU = "CPUExecutionProvider"  # ONNX Runtime's name of the processor


def import_runtime() -> Any:
    """Imports ONNX Runtime, which takes 18 MB, in a process that needs it."""
    import onnxruntime

    return onnxruntime


def open_network(model: bytes, providers: Sequence[str] = (CPU,)) -> "InferenceSession":
    """Returns a network from the bytes of an ONNX file, on the first provider that works.

    Threads may share the network; each process opens a separate one.
    """
    onnxruntime = import_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL
    return onnxruntime.InferenceSession(model, options, providers=[*providers])
