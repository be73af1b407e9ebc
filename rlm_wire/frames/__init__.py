"""The protocol, pure: bytes in, events out. No I/O, no clock, no randomness, no logging; what is needed is passed in.

Read in this order: `limits` (every number and its reason), `schema` (the frames), `codec` (Struct ↔ bytes), `framing`
(bytes ↔ bodies), `handshake` (Hello to Welcome), `state` (what may follow what), `credit`, `assembly` (Parts),
`replay`, `outbox` (what is sent next), `connection` (all of it joined), `events` (what a connection tells its owner).
"""
