"""Categories, checked by eye: real names from the paper's list, and the rules that go beyond the name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.model.categories import CATEGORIES, OTHER, find_category
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


def test_all_categories_are_used() -> None:
    assert set(CATEGORIES) == set(BY_NAME)
    assert CATEGORIES[-1] == OTHER


@given(st.text(max_size=20), st.lists(st.text(max_size=8), max_size=4), st.lists(st.text(max_size=12), max_size=2))
def test_anything_has_one_category(name: str, places: list[str], bases: list[str]) -> None:
    qualname = ".".join([*places, name])
    found = find_category(name, qualname, bases)
    assert found in CATEGORIES
    assert find_category(name, qualname, list(bases)) == found
