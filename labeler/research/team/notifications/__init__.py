"""The "Notifications" section: webhooks, their deliveries, and notifications of the browser."""
