
from torch import nn

class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.conv = nn.Conv2d(in_shape[1], 8, 3)
        self.head = nn.Linear(8, out_shape[0])

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))
