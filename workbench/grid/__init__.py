"""From a grid file to trained cells: parse, plan, start processes, resume, check fairness."""
