"""`wildflower reproduce`: a table of a paper, run again and set beside the paper's numbers."""
