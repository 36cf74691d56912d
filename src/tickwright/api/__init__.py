"""The REST API: ``app.create_app`` makes an ASGI application, which ``rest.listener.Listener`` serves."""
