"""Linked passes: native composition of captured calls, and the judge's clock around them."""
