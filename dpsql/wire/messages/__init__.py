"""The messages of the protocol as bytes: those that clients send and those that the gateway sends."""
