"""Do these pieces belong together: tokenizer, template, config, weights? And where do two clients part ways?

    match(tokenizer, model)                         what does not fit, with the evidence and the cure
    first_divergence(client_a, client_b, messages)  the first stage and position at which two clients differ
"""

from labutils.contracts.arguments import InputError
from labutils.contracts.clients import Divergence, first_divergence
from labutils.contracts.pairing import Finding, Match, match

__all__ = ["Divergence", "Finding", "InputError", "Match", "first_divergence", "match"]
