"""The command rules: the execpolicy language, approvals and session trust."""
