"""Choice of configurations: `space` makes solutions of them, `search` measures and chooses, `files` writes them."""
