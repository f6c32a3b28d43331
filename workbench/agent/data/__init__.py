"""Questions with gold answers, in the formats that people have, and the benchmarks that are known by name."""
