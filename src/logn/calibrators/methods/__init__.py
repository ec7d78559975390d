"""The post-hoc methods, one file each; `calibrators/all_methods.py` lists them."""
