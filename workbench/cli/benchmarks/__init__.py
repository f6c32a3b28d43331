"""What `sorl bench` measures, each beside its baseline. Light: the parts are imported when they run."""

PARTS = {
    "rollout": "episodes/s of the engine beside one generate() call a turn, same weights",
    "update": "tokens/s of a full update beside a bare forward and backward of the same minibatches",
    "logging": "training with the recorder beside the same training without it",
    "ingest": "turn rows/s into the database beside DuckDB's bare read_parquet of the same files",
    "packing": "iterations/s of one process a core beside fewer processes with more threads each",
    "vocabulary": "peak memory of log-probs over 151,936 tokens, in parts beside all logits at once",
    "retrieval": "queries/s of BM25 over 34,000 passages beside rank_bm25",
    "replay": "a batch of 2 million tokens through six algorithms, beside six bare PPO losses",
    "shares": "where the wall time of an iteration goes",
    "live": "from a segment's file to its rows in a browser, and training watched beside training alone",
    "browse": "from question to figure over 1,000 runs x 10,000 steps; trackio and TensorBoard on what they take",
    "trl": "a whole GRPO iteration beside TRL's GRPOTrainer, equal model, batch, lengths and updates",
}
ON_REQUEST = ("live", "browse")  # left out where no part is named: minutes, a browser, tens of gigabytes
