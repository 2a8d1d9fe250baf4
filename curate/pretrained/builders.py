"""Whether a call builds a model with trained weights, by its `pretrained=`, `weights=` and their like."""

import re

from curate.pretrained.operations import truth
from curate.pretrained.values import TRUE, UNKNOWN, Atom, Call, Const, Made, Outside, Value

#: These take `pretrained=` or `weights=` for something else, or only keep it.
_OTHER = re.compile(
    r"^(sklearn|numpy|np|scipy|random|torchmetrics|pandas|torch_geometric|torch(?!\.hub)|typing|logging)\."
    r"|^(super|print|setattr|argparse\.Namespace|types\.SimpleNamespace|SimpleNamespace|vars|hasattr|isinstance)$"
    r"|^object\.__init__$|(Config|Cfg|Loss|Criterion|Sampler|Coder)$|(^|\.)(add_argument|[a-z_]*(loss|average|entropy))$"
    r"|^torchvision\.models\.(.*\.)?_utils\."
)
#: Builders of torchvision, `torchvision.models.__dict__[name]` among them.
_BUILDER = re.compile(
    r"^torchvision\.models\.(?!_[a-z]|.*\._[a-z])(?!feature_extraction\.|get_(?!model$)|list_)([a-z0-9_]+\.)*([a-z][a-z0-9_]*|\*)$"
)
#: Builders of torchvision whose backbone has ImageNet weights by default.
_WITH_BACKBONE = re.compile(
    r"(fasterrcnn|maskrcnn|keypointrcnn|retinanet|fcos|ssd300|ssdlite320|deeplabv3|fcn|lraspp)_[a-z0-9_]+$"
)
_ENUM = re.compile(r"_Weights(\.|$)|\.get_(model_)?weights?\b|^get_(model_)?weights?\b|WeightsEnum\.")


def builds_trained(path: str, call: Call) -> bool:
    """Whether a call of the outside name `path`, empty when it is not known, builds a model with trained weights."""
    if _OTHER.search(path):
        return False
    args, keywords = call.args, call.keywords
    if any(asks_for_weights(keywords.get(key)) for key in ("pretrained", "pretrained_backbone", "encoder_weights")):
        return True
    weights, of_backbone = keywords.get("weights"), keywords.get("weights_backbone")
    name = path.rpartition(".")[2]
    if path.startswith("timm."):
        place = 1 if name == "create_model" and len(args) > 1 else 0
        by_position = len(args) > place and TRUE in args[place]
        return by_position or asks_for_weights(keywords.get("checkpoint_path")) or _is_weights(weights)
    if path.startswith("segmentation_models_pytorch.") and (name == "create_model" or name[:1].isupper()):
        if len(args) > 2 and name != "create_model":
            return asks_for_weights(args[2])
        return "encoder_weights" not in keywords
    if _BUILDER.match(path):
        return asks_for_weights(weights) or asks_for_weights(of_backbone) or _is_trained_by_torchvision(name, call)
    return _is_weights(weights) or _is_weights(of_backbone)


def _is_trained_by_torchvision(name: str, call: Call) -> bool:
    """Whether a builder of torchvision takes trained weights by position or by default."""
    args, keywords = call.args, call.keywords
    if name in ("resnet_fpn_backbone", "mobilenet_backbone"):
        return len(args) > 1 and _takes(args[1])
    names = [name]
    if name == "get_model":
        asked = args[0] if args else keywords.get("name", UNKNOWN)
        names = [str(atom.value) for atom in asked if isinstance(atom, Const)]
    elif args and _takes(args[0]):
        return True
    told = "weights_backbone" in keywords or "pretrained_backbone" in keywords
    return not told and any(map(_WITH_BACKBONE.match, names))


def asks_for_weights(value: Value | None) -> bool:
    """Whether this value of `pretrained=` or `weights=` asks for trained weights."""
    return value is not None and any(
        truth((atom,)) is True or (isinstance(atom, Made) and is_enum(atom)) for atom in value
    )


def is_enum(atom: Atom) -> bool:
    """Whether this is a weights enumeration of torchvision or a member of one."""
    return isinstance(atom, Outside | Made) and bool(_ENUM.search(atom.path))


def _is_weights(value: Value | None) -> bool:
    """Whether this value can be nothing but trained weights: the name of some, or a member of a weights enumeration."""
    return any(is_enum(atom) or (isinstance(atom, Const) and atom.kind == "str" and atom.value) for atom in value or ())


def _takes(value: Value) -> bool:
    """Whether this positional argument of a builder is the old `pretrained` or the new `weights`."""
    return _is_weights(value) or TRUE in value
