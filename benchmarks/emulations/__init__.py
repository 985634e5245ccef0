"""Networks whose latencies are recorded on other machines, and the program that records them."""
