"""Say why a variant is fast or slow: from its profile and its timing to a reason that a user can act on."""
