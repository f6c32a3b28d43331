"""Statistics over runs: comparison, survival, stability regions, the paper's claims, results files."""
