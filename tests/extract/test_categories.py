"""Categories, checked by eye: real names from the paper's list, and the rules that go beyond the name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.model.categories import CATEGORIES, OTHER, find_category, is_network, split_words
from lemur_core.graphs.graph import Graph, Node, Ref, TensorType
from tests.builders.suites import table

#: Names from the paper's list of targets.
BY_NAME = {
    "Attention": "Attention WindowAttention_v2 MultiHeadAttention SEModule SqueezeExcite EcaModule CBAM HaloAttn NonLocalAttn XCA MHSA"
    " BertSelfOutput C2fAttn AttentionPool2d MSDeformAttn RelPosAttention FocalModulation SplitAttn",
    "Transformer": "TransformerBlock SwinTransformerV2 BertLayer EncoderBlock ViTEncoder MetaFormerBlock Cait PoolingVisionTransformer"
    " OPTDecoderLayer EvaBlockPostNorm VisionTransformerRelPos",
    "Convolution": "Conv2d ConvNormAct Bottleneck Bottle2neck DepthwiseSeparableConv InvertedResidual C2f C3 RepVggBlock GhostModule"
    " InceptionA Mixed_5b BasicBlock ModulatedDeformConv2d Fire _DenseLayer MBConv Block35 ReductionCell0",
    "MLP": "Mlp GatedMlp FFN Linear SwiGLUFFN BertIntermediate MlpMixer SpatialGatingUnit LoRALinear _MLPMixer",
    "Recurrent": "BidirectionalLSTM ConvGRU RecurrentBlock RNN2dBase",
    "Graph": "GINConv2d GraphSAGE MessagePassing DenseGCNConv HeteroConv SchNet Node2Vec MetaPath2Vec",
    "Normalization": "LayerNorm2d FrozenBatchNormAct2d RmsNorm2dFp32 GRN EvoNorm2dB0 InplaceAbn FilterResponseNormTlu2d GroupNorm",
    "Activation": "ReLU PReLU HardSwishMe GELUActivation Mish MetaAconC GLU LogSoftmax Tanhshrink",
    "Pooling": "AvgPool2d SPPF ASPP BertPooler FastAdaptiveAvgMaxPool MaxPool2dSamePadding SAGPooling",
    "Resampling": "Downsample2d PatchMerging PixelShuffle CARAFE ConvTranspose SpaceToDepth BlurPool2d UpConvBlock",
    "Embedding": "PatchEmbed3d RotaryEmbeddingCat PositionalEncodingFourier BertEmbeddings RelPosBias GaussianSmearing"
    " FourierFeatures",
    "Regularization": "DropPath DropBlock2d StochasticDepth PatchDropout",
    "Quantization": "NormEMAVectorQuantizer",
    "Network": "ResNet EfficientNet MobileNetV3Features VGG DenseNet InceptionV4 HighResolutionNet XceptionAligned ModelEmaV2 RAFT",
    "Neck": "FPN BiFPNStage FeaturePyramidNetwork MLANeck LastLevelP6P7",
    "Head": "RPNHead ClassifierHead FastRCNNPredictor Detect IAuxDetect BertOnlyMLMHead Classify SemSegFPNHead RoIHeads TestTimePoolHead",
    "Detection": "RoIAlignRotated NMS AnchorGenerator RetinaNet DeformRoIPool HungarianMatcher SSD RegionProposalNetwork DFPSSampler",
    "Segmentation": "MaskDecoder SemanticSegmentor LRASPP BasePixelDecoder MaskDownSampler Sam",
    "Loss": "FocalLoss SetCriterion GHMC LabelSmoothingCrossEntropy CIoULoss AdaptiveLogSoftmaxWithLoss MaskedDiceLoss",
    "Augmentation": "RandomCrop AutoAugment ColorJitter Normalize BatchSyncRandomResize ResizeToSequence GaussianBlur TenCrop",
    OTHER: "Identity Concat Permute Accuracy LambdaLayer Unflatten FourierContinuation",
}  # fmt: skip


@pytest.mark.parametrize(("name", "category"), [(n, c) for c, names in BY_NAME.items() for n in names.split()])
def test_by_name(name: str, category: str) -> None:
    assert find_category(name, f"repository.models.{name}", ["nn.Module"]) == category


@table(__file__, "categories.md", "Beyond the name", globals())
def test_beyond_the_name(qualname: str, bases: list[str], category: str) -> None:
    assert find_category(qualname.rpartition(".")[2], qualname, bases) == category


def deep(channels: int, layers: int, shape: tuple[int, ...]) -> Graph:
    """A row of convolutions over images of 16 by 16, whose output has that shape."""
    first = Node("input", (("number", 0),), (TensorType("float32", (2, channels, 16, 16)),))
    last = TensorType("float32", shape)
    rest = [Node("convolution", (("input", Ref(place)),), (last,)) for place in range(layers)]
    return Graph((first, *rest), (Ref(layers),))


def test_many_layers_from_an_image_on_are_a_network() -> None:
    assert is_network(deep(3, 6, (2, 10)))
    assert is_network(deep(3, 6, (2, 8, 16, 16))), "as of segmentation"
    assert not is_network(deep(3, 6, (2, 8, 4, 4))), "a stem"
    assert not is_network(deep(3, 5, (2, 10)))
    assert not is_network(deep(8, 6, (2, 10))), "a block between stem and head"


def test_the_graph_decides_where_names_say_nothing() -> None:
    """`_MRCNN` is a network of sleep stages: three letters more than R-CNN, and no detector."""
    name, path = "_MRCNN", "sleep.models.attn._MRCNN"
    assert find_category(name, path, ["nn.Module"], {"input", "convolution", "batch_norm", "gelu"}) == "Convolution"
    assert find_category("MaskRCNN", path, [], {"convolution"}) == "Detection"
    assert find_category("BertMixedLayer", "net.BertMixedLayer", [], {"linear", "attention"}) == "Attention"
    assert find_category("MixedConv2d", "net.MixedConv2d", [], {"linear", "convolution"}) == "Convolution"
    assert find_category("GCN", "net.blocks.GCN", ["nn.Module"], {"convolution", "add"}) == "Convolution"
    assert find_category("GCN", "net.blocks.GCN", ["nn.Module"], {"linear", "index_add"}) == "Graph"
    assert find_category("GCN", "net.blocks.GCN", ["nn.Module"]) == "Graph"
    assert find_category("ViT", "net.vit.ViT", [], {"linear", "attention"}) == "Transformer"
    assert find_category("ViT", "net.vit.ViT", [], {"linear", "attention"}, whole=True) == "Network"
    assert find_category("Thing", "vit_pytorch.clips.Thing", [], {"sub", "div"}) == OTHER
    assert find_category("NormalizeVideo", "net.modeling.NormalizeVideo", [], {"sub", "div"}) == OTHER
    for operations, category in (
        ({"lstm", "linear"}, "Recurrent"), ({"_softmax", "matmul"}, "Attention"), ({"linear"}, "MLP"), ({"add"}, OTHER),
        ({"attention", "layer_norm", "linear"}, "Transformer"), ({"embedding"}, "Embedding"), ({"rms_norm"}, "Normalization"),
    ):  # fmt: skip
        assert find_category("Foo", "pkg.Foo", [], operations) == category


@table(__file__, "categories.md", "Words", globals())
def test_words(name: str, words: str) -> None:
    assert split_words(name) == words


def test_all_categories_are_used() -> None:
    assert set(CATEGORIES) == set(BY_NAME)
    assert CATEGORIES[-1] == OTHER


@given(st.text(max_size=20), st.lists(st.text(max_size=8), max_size=4), st.lists(st.text(max_size=12), max_size=2))
def test_anything_has_one_category(name: str, places: list[str], bases: list[str]) -> None:
    qualname = ".".join([*places, name])
    found = find_category(name, qualname, bases)
    assert found in CATEGORIES
    assert find_category(name, qualname, list(bases)) == found


def test_the_rules_are_not_slow() -> None:
    """No pattern backtracks catastrophically: long names of every kind are fast."""
    for name in ("A" * 300, "Conv" * 80, "a_" * 150, "RandomBatch" * 30, "NormAct" * 50):
        assert find_category(name, name, []) in CATEGORIES
