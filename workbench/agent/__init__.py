"""Rollouts: worlds that ask questions, retrievers, engines that sample, and episodes as batches."""
