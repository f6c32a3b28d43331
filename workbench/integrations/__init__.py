"""The former address of `sorl.trainers`, for scripts and settings that name its modules."""
