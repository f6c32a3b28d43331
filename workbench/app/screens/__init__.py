"""One file a screen: choices from the address, named queries, a figure."""
