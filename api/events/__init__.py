"""Server-sent events: streams of the revisions of a balance. They are not the events of the domain."""
