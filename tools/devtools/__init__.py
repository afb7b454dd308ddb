"""Parts of the developer commands that `noxfile.py` puts together."""
