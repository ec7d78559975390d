"""One file per framework: its class layer, background and activation, its detectors, its kind of files."""
