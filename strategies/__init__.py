"""Methods, one file each, and in `base` the contract they keep."""
