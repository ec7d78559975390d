"""The paper's tables and our own evidence, as commands: train what is missing, measure, print."""
