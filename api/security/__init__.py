"""Who may send a request: credentials, rights, limits, signed forwards and the audit trail."""
