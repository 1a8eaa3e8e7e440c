"""Sending events to webhooks: signed requests, retries, and refused addresses."""
