"""A model and a device -> kernels compiled for it. The only home of tvm, which comes with onefold[kernels]."""
