"""Faults planted in one turn of one trajectory, and how often the attribution finds them (`sorl bench attribution`)."""
