"""CIFAR-10-LT and CIFAR-100-LT, a benchmark that readers know: train, keep the logits, print the table.

`python -m logn_research.cifar pack | train | keep | table`. Training takes an hour of two cores; the table is made of
the kept logits in seconds, without torch.
"""
