"""The stability region: the boundary of collapse in each column, the area below it, and how sure few seeds can be."""
