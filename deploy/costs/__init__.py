"""`wildflower costs`: the communication table of the FedRE paper, measured."""
