"""What an agent and its clients must agree on."""

VERSION = "0.2.0"  # of Onefold
PROTOCOL = 1  # counted up when an older client or agent would misunderstand
PORT = 7411
