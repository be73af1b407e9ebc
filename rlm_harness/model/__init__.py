"""The model, seen from the turn loop: messages and tools in, one reply out.

`interface` says what a model is; `chat` is any OpenAI-compatible endpoint (with `streaming` and `retries`, both pure);
`scripted` plays fixed replies, for the demo and for tests of harnesses.
"""
