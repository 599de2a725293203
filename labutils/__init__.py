"""labutils backs the lessons of Open the Pipeline: checkpoints, checks, pictures and exact arithmetic.

Importing it imports neither torch nor transformers. It settles the profile once (`environment.apply_settings`), because
the Hub client reads HF_HUB_OFFLINE when it is first imported: import labutils before transformers.
"""

from labutils import environment

__version__ = "0.1.0"

environment.apply_settings()
