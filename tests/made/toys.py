"""A toy detector and a toy classifier, as small as what LogN asks of a model."""

import numpy as np

from logn.models.proposals import Proposals

ROWS = 4


class ToyDetector:
    """An object of a user's: of each image four boxes, whose logits are the first four pixels.

    Pass what it says of itself beyond the three that it must have.
    """

    background, activation = -1, "softmax"

    def __init__(self, **said):
        self.seen = 0
        vars(self).update(said)

    def propose(self, images):
        self.seen += len(images)
        return [self.proposals(np.asarray(image)) for image in images]

    def proposals(self, image):
        corners = np.arange(ROWS)[:, None] + [0.0, 0.0, 3.0, 2.0]
        return Proposals(corners, 8 * image.reshape(3, -1).T[:ROWS], height=image.shape[1], width=image.shape[2])

    def masks(self, image, boxes, classes, rows):
        for left, top, right, bottom in np.asarray(boxes).astype(int):
            mask = np.zeros(image.shape[1:], bool)
            mask[top:bottom, left:right] = True
            yield mask


def toy_classifier(columns=6, seed=0):
    """A torch model of a pooled image and one Linear, in evaluation mode."""
    import torch

    torch.manual_seed(seed)
    layers = (torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, columns))
    return torch.nn.Sequential(*layers).eval()
