"""The command line: each verb in a file of its own, which only calls the library."""
