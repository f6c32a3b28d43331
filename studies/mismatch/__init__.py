"""How often the seven kinds of sampler/trainer mismatch are told apart, on generated dumps.

`courses` trains small policies and keeps the weights of every step; `samplers` makes rollouts with one kind
of mismatch, or with none; `dumps` writes them as NeMo-RL or slime would; `count` imports and diagnoses them.
"""
