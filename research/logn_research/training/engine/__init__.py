"""What every training shares: the run, checkpoints, schedules, processes, batches."""
