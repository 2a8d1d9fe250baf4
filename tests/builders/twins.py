"""One network in several spellings, and others that are nearly the same."""

CASE = {
    "in_shape": [2, 3, 8, 8],
    "out_shape": [10],
    "dtype": "float32",
    "values": [0.0, 1.0],
    "output": [2, 10],
    "words": 0,
}
NET = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.{stem} = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.{norm} = nn.BatchNorm2d(8)
        self.side = nn.Conv2d(3, 8, 1, bias=False)
        self.head = nn.Linear(8, out_shape[0])
        self.drop = nn.Dropout(0.3)
        {more}

    def forward(self, x):
        {body}
        return self.head(self.drop({pool}))
"""
PLAIN = {
    "stem": "stem",
    "norm": "norm",
    "more": "pass",
    "body": "x = self.norm(self.stem(x)).relu() + self.side(x)",
    "pool": "x.mean((2, 3))",
}
SAME = {
    "names and operands": {"stem": "z", "norm": "a", "body": "x = self.side(x) + F.relu(self.a(self.z(x)))"},
    "a formula": {"body": "x = self.norm(self.stem(x)).clamp(min=0) * 1.0 + self.side(x)"},
    "a conversion to the type that it has": {"pool": "x.float().mean((2, 3), dtype=torch.float32)"},
    "a pooling": {"pool": "F.adaptive_avg_pool2d(x, 1).flatten(1)"},
    "a convolution by hand": {
        "body": "y = (self.stem.weight.view(8, -1) @ F.unfold(x, 3, padding=1)).view(len(x), 8, *x.shape[2:]);"
        " x = self.norm(y).relu() + self.side(x)"
    },
    "a constant, kept": {
        "more": "self.register_buffer('two', torch.tensor(2.0))",
        "body": "x = (self.norm(self.stem(x)).relu() * self.two + self.side(x) * self.two) / 2",
    },
}
DIFFERENT = {
    "what is added to a variance": {"more": "self.norm.eps = 1e-6"},
    "the side is not added": {"body": "x = self.norm(self.stem(x)).relu() + 0 * self.side(x)"},
    "another bound": {"body": "x = F.relu6(self.norm(self.stem(x))) + self.side(x)"},
    "the value of a buffer": {
        "more": "self.register_buffer('two', torch.tensor(2.5))",
        "body": "x = (self.norm(self.stem(x)).relu() * self.two + self.side(x) * self.two) / 2",
    },
    "a gradient that stops": {"body": "x = self.norm(self.stem(x)).relu().detach() + self.side(x)"},
    "train mode alone": {"body": "x = (self.norm(self.stem(x)) if self.training else self.norm(self.stem(x)).relu()) + self.side(x)"},
    "noise that is added": {"pool": "x.mean((2, 3)) + torch.randn(len(x), 1) - torch.randn(len(x), 1)"},
    "the rate of dropout": {"pool": "F.dropout(x.mean((2, 3)), 0.5, self.training)"},
}  # fmt: skip
