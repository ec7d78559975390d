"""Test a Detectron2 model with its logits normalised, by the framework's own evaluation.

    python examples/detectron2_test.py CONFIG WEIGHTS --method logn

LVIS is expected where Detectron2 looks for it (`DETECTRON2_DATASETS`).
"""

import argparse
import itertools

import torch
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import get_cfg
from detectron2.data import build_detection_test_loader
from detectron2.engine import DefaultTrainer
from detectron2.evaluation import LVISEvaluator, inference_on_dataset, print_csv_format
from detectron2.modeling import build_model

import logn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("weights")
    parser.add_argument("--method", default="recommended", help="logn is the paper's equation")
    parser.add_argument("--num-batches", type=int, help="collect from so many images only")
    chosen = parser.parse_args()

    config = get_cfg()
    config.merge_from_file(chosen.config)
    config.MODEL.WEIGHTS = chosen.weights
    model = build_model(config).eval()
    DetectionCheckpointer(model).load(config.MODEL.WEIGHTS)

    # The test loader on the training set: each image once, without augmentation; its labels are not used.
    training_images = build_detection_test_loader(config, config.DATASETS.TRAIN[0])
    logn.calibrate(
        model,
        itertools.islice(training_images, chosen.num_batches),
        method=chosen.method,
        forward=lambda model, batch: model(batch),
        progress=True,
    )
    name = config.DATASETS.TEST[0]
    with torch.inference_mode():
        results = inference_on_dataset(
            model, DefaultTrainer.build_test_loader(config, name), LVISEvaluator(name, output_dir="runs/detectron2")
        )
    print_csv_format(results)


if __name__ == "__main__":
    main()
