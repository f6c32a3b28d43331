"""The former address of `sorl.record`."""

from sorl.trainers.trl import record as record
