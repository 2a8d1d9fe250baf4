"""Which lines of a network's code load trained weights, decided from the code itself.

The code is not searched for words, and nothing of it is run: constants, defaults and arguments are followed to the
calls that leave the file, and those calls decide:

- `pretrained=`, `weights=`, `weights_backbone=`, `encoder_weights=` with a value that is not False or None, by keyword
  or where the signature is known (`torchvision.models`, `timm.create_model`) by position or default: the detection and
  segmentation builders of torchvision, and segmentation_models_pytorch, take an ImageNet backbone unless told not to;
- `X.from_pretrained(...)`, except for tokenizers, configurations, processors and schedulers;
- `torch.hub.load(...)` unless it says `pretrained=False` or `weights=None`, `load_state_dict_from_url`, `load_url`,
  safetensors' `load_file`, `torch.jit.load`;
- `load_state_dict(...)` (not of an optimizer), `nn.Parameter(...)`, `.copy_(...)` of something read by `torch.load` and
  its like; a whole model read by `torch.load` that is then used.

What cannot be known from the file: a parameter without default of something that the file never calls, and
`prm["name"]`, are settings of the caller. A setting never counts as trained weights, nor does code that runs only
if a setting is true, unless its other branch loads weights too; `prm.get("name", default)` and a parameter's default
count as the default. Other unknown conditions (a file exists, an import worked) count as possible. Code under
`if __name__ == "__main__":`, after `return`, or behind a condition known to be false does not count.

The files, each importing only those before it: `values`, `operations` (on values), `builders` and `rules` (calls that
leave the file), then the interpreter as a chain of classes, `expressions`, `calls`, `statements`, `follower`.
"""

from curate.pretrained.find import Evidence, find_pretrained

__all__ = ["Evidence", "find_pretrained"]
