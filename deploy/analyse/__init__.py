"""What the models of a finished run have in common, and how far their scores can be trusted."""
