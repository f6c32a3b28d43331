"""The fault lab: bugs of real trainers, injected by `[fault]` in a grid file; docs/faults.md lists them."""
