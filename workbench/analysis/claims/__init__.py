"""The claims of arXiv 2511.20718, one by one, judged by one rule for all of them (docs/statistics.md)."""
