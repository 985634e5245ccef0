"""For tests of extensions: the contract suite of compression methods, and toy workloads."""
