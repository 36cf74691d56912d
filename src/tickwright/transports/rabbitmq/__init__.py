"""RabbitMQ; README.md has the promise, the outcomes and the limits."""
