"""Native module of linked passes, used by judge and workers; the judge's clock is in `judge.linked_passes`."""
