"""The figures of the paper, from one's own run."""
