"""The five queries. ``fan_out``, ``loyalty``, ``sales``, ``export`` and ``archive`` define one each."""
