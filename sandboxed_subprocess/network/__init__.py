"""Host rules, and (later) the gateway that enforces them."""
