"""Fold, export, prove: a corrected model in OpenVINO, LiteRT and onnxruntime, in float32, float16 and int8.

Each `to_…` converts a model of torch, writes the engine's file, and gives a function that runs it on a batch of images.
"int8" rounds weights and activations, with `calibration` batches to find their ranges; "int8-weights" the weights only.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor
from torch.nn import Module

import logn

Run = Callable[[Tensor], list[np.ndarray]]


def to_openvino(
    model: Module, images: Tensor, path: Path, precision: str = "float32", calibration: Sequence[Tensor] = ()
) -> Run:
    import openvino

    converted = openvino.convert_model(model, example_input=images)
    if precision == "int8":
        import nncf

        converted = nncf.quantize(converted, nncf.Dataset([batch.numpy() for batch in calibration]))
    elif precision == "int8-weights":
        import nncf

        converted = nncf.compress_weights(converted)
    openvino.save_model(converted, path, compress_to_fp16=precision == "float16")
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: [np.array(output) for output in compiled([images.numpy()]).values()]


def to_litert(
    model: Module, images: Tensor, path: Path, precision: str = "float32", calibration: Sequence[Tensor] = ()
) -> Run:
    import litert_torch
    from ai_edge_litert.interpreter import Interpreter

    litert_torch.convert(model, (images,)).export(str(path))
    if precision != "float32":
        quantise_litert(path, precision, calibration)
    run = Interpreter(str(path)).get_signature_runner()
    ((name, taken),) = run.get_input_details().items()
    given = sorted(run.get_output_details().items())

    def on(images: Tensor) -> list[np.ndarray]:
        found = run(**{name: rounded(images.numpy(), taken)})
        return [restored(found[output], details) for output, details in given]

    return on


def rounded(values: np.ndarray, details: dict[str, Any]) -> np.ndarray:
    """Floating-point values as the whole numbers that an input of int8 takes; as they are for any other."""
    scale, zero = details["quantization"]
    if details["dtype"] == np.float32:
        return values
    limits = np.iinfo(details["dtype"])
    return np.clip(np.rint(values / scale) + zero, limits.min, limits.max).astype(details["dtype"])


def restored(values: np.ndarray, details: dict[str, Any]) -> np.ndarray:
    """The floating-point values that an output stands for."""
    scale, zero = details["quantization"]
    return values if values.dtype == np.float32 else (values.astype(np.float32) - zero) * np.float32(scale)


def quantise_litert(path: Path, precision: str, calibration: Sequence[Tensor]) -> None:
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import qtyping, quantizer, recipe

    quantiser = quantizer.Quantizer(str(path))
    if precision == "float16":
        half = qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT)
        rounding = qtyping.OpQuantizationConfig(weight_tensor_config=half, explicit_dequantize=True)
        casting = quantizer.AlgorithmName.FLOAT_CASTING
        for operator in ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D"):
            quantiser.update_quantization_recipe(".*", qtyping.TFLOperationName[operator], rounding, casting)
    else:
        chosen = recipe.static_wi8_ai8() if precision == "int8" else recipe.weight_only_wi8_afp32()
        quantiser.load_quantization_recipe(chosen)
    ranges = None
    if quantiser.need_calibration:
        (name,) = Interpreter(str(path)).get_signature_runner().get_input_details()
        ranges = quantiser.calibrate({"serving_default": [{name: batch.numpy()} for batch in calibration]})
    quantiser.quantize(ranges).export_model(str(path), overwrite=True)


def to_onnxruntime(
    model: Module, images: Tensor, path: Path, precision: str = "float32", calibration: Sequence[Tensor] = ()
) -> Run:
    import onnxruntime

    torch.onnx.export(model, (images,), str(path), input_names=["images"], dynamo=False)
    if precision != "float32":
        quantise_onnx(path, precision, calibration)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.numpy()})


def quantise_onnx(path: Path, precision: str, calibration: Sequence[Tensor]) -> None:
    import onnx
    from onnxruntime import quantization
    from onnxruntime.transformers import float16

    if precision == "float16":
        onnx.save(float16.convert_float_to_float16(onnx.load(str(path)), keep_io_types=True), str(path))
    elif precision == "int8-weights":
        quantization.quantize_dynamic(path, path, per_channel=True, op_types_to_quantize=["MatMul", "Gemm"])
    else:

        class Batches(quantization.CalibrationDataReader):
            batches = iter([{"images": batch.numpy()} for batch in calibration])

            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(self.batches, None)

        quantization.quantize_static(path, path, Batches(), per_channel=True)


ENGINES = {
    "OpenVINO": (to_openvino, ".xml"),
    "LiteRT": (to_litert, ".tflite"),
    "onnxruntime": (to_onnxruntime, ".onnx"),
}


def largest_difference(before: np.ndarray, after: np.ndarray, affine: logn.ClassAffine) -> float:
    """How far the corrected logits are off the map of the uncorrected ones, relative to the largest (or to 1)."""
    expected = affine(before.astype(np.float64))
    return float(np.abs(after - expected).max() / max(1.0, np.abs(expected).max()))


def main() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10).eval()
    images = torch.rand(1, 3, 64, 64)
    batches = [torch.rand(8, 3, 64, 64) for _ in range(4)]
    folder = Path(tempfile.mkdtemp())
    for name, (export, suffix) in ENGINES.items():
        corrected = torchvision.models.resnet18(num_classes=10).eval()
        corrected.load_state_dict(model.state_dict())

        # fold
        affine = logn.calibrate(corrected, batches, method="logn", fold=True).affine

        # export
        before = export(model, images, folder / f"model{suffix}")
        after = export(corrected, images, folder / f"corrected{suffix}")

        # prove
        difference = largest_difference(before(images)[0], after(images)[0], affine)
        print(f"{name}: largest difference from scale x logit + shift: {difference:.1e}")


if __name__ == "__main__":
    main()
