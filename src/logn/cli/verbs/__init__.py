"""Each verb of the command line in a file of its own."""
