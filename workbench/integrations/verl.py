"""The former address of the plugin for verl: VERL_USE_EXTERNAL_MODULES may name it."""

from sorl.trainers.verl import install as install
