"""The demo's models and its speech, against the originals."""
