"""Other trainers: their logs become runs."""
