"""Audits one customer at a time: do balance, state and entries agree with the events?"""
