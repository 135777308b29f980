"""One compute thread."""

import torch

# As a CPU device has by default. Also what makes "bit-equal" mean something: with more, a kernel
# may split its sums otherwise from one call to the next.
torch.set_num_threads(1)
