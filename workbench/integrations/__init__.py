"""Other trainers: recording from them, our losses in them, their logs read."""
