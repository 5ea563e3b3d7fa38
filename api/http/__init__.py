"""HTTP itself: the server, parameters, bodies, responses, problems, metrics and the OpenAPI document."""
