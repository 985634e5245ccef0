"""Serve a deployment folder over HTTP with dynamic batching. The only home of starlette and uvicorn."""
